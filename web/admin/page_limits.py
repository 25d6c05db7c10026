"""Let few expensive requests of the admin work at a time, and leave the other slots to orders.

A web process answers few requests at a time (web.front.admission), and a preview, a file or a search may take
seconds. Without a limit, one person who presses a button again and again would stop the shop's orders. The
process counts by itself: a refusal needs neither the database nor Redis.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse

#: How many such requests a process works on, or lets wait, at a time. Half of `config.web.THREADS`.
MOST = 2
#: How long the newest request of a user waits for the one before.
PATIENCE_SECONDS = 5.0
RETRY_SECONDS = 1

Rest = ParamSpec("Rest")
Page = TypeVar("Page", bound=HttpResponseBase)

#: A kind of work, and the id of the user who asked for it.
Key = tuple[str, Any]


class Refused(Exception):
    """A request must wait, and has changed nothing. The text says for what. `operations.site` answers it."""

    def __init__(self, text: str, *, status: int = 429) -> None:
        super().__init__(text)
        self.status = status


class _WaitingRequest:
    __slots__ = ("fate",)

    def __init__(self) -> None:
        self.fate = ""  # or "turn", "replaced"


class Turns:
    """The requests in work: one of a kind for each user, and `most` in all."""

    def __init__(self, *, most: int = MOST, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._most = most
        self._patience = patience_seconds
        self._changed = threading.Condition()
        self._working: set[Key] = set()
        #: The newest request of a user who waits for their own work. It has a slot, so it counts like work.
        self._next: dict[Key, _WaitingRequest] = {}

    @property
    def in_work(self) -> int:
        return len(self._working)

    @property
    def waiting(self) -> int:
        return len(self._next)

    def take(self, key: Key, *, is_newest_wanted: bool) -> None:
        """Begin a piece of work, or raise `Refused`. Give it back with `give`.

        If `is_newest_wanted`, wait for the user's work of this kind to end. A newer request takes the place
        of one that waits.
        """
        with self._changed:
            waits = key in self._working
            if waits and not is_newest_wanted:
                raise Refused(f"Your last {key[0]} is not finished yet. Try again when it is.")
            replaced = self._next.pop(key, None)
            if replaced is not None:
                replaced.fate = "replaced"
                self._changed.notify_all()
            elif len(self._working) + len(self._next) >= self._most:
                raise Refused("Others are using the slow pages at this moment. Try again in a few seconds.")
            if not waits:
                self._working.add(key)
                return
            waiter = self._next[key] = _WaitingRequest()
            self._changed.wait_for(lambda: waiter.fate, timeout=self._patience)
            if waiter.fate == "turn":
                return
            if waiter.fate == "replaced":
                raise Refused(f"A newer {key[0]} of yours has replaced this one.", status=409)
            del self._next[key]
            raise Refused(f"Your last {key[0]} is not finished yet. Try again when it is.")

    def give(self, key: Key) -> None:
        """End a piece of work, and let the user's next request begin."""
        with self._changed:
            if (waiter := self._next.pop(key, None)) is not None:
                waiter.fate = "turn"  # the key stays in work
                self._changed.notify_all()
            else:
                self._working.discard(key)

    def answer(
        self, request: HttpRequest, kind: str, view: Callable[[], Page], *, is_newest_wanted: bool = False
    ) -> Page:
        """Call `view` in the user's turn, which lasts until the answer is complete.

        A streamed answer is complete when the server closes it.
        """
        key = (kind, request.user.pk)
        self.take(key, is_newest_wanted=is_newest_wanted)
        give = functools.partial(self.give, key)
        try:
            response = view()
            if isinstance(response, SimpleTemplateResponse):
                response.render()  # here, because it may be the expensive part
        except BaseException:
            give()
            raise
        if response.streaming:
            # Django calls the closers when the server closes the answer, even if nobody has read it.
            response._resource_closers.append(give)  # type: ignore[attr-defined]  # Django's, without a type
        else:
            give()
        return response


#: Those of this process.
TURNS = Turns()


def limit_page(
    kind: str, *, is_newest_wanted: bool = False
) -> Callable[
    [Callable[Concatenate[Any, HttpRequest, Rest], Page]],
    Callable[Concatenate[Any, HttpRequest, Rest], Page],
]:
    """Let a view, which is a method, work in the user's turn. `kind` is a noun that a refusal shows.

    Set `is_newest_wanted` for a view that changes nothing and whose older answers nobody needs.
    """

    def decorate(
        view: Callable[Concatenate[Any, HttpRequest, Rest], Page],
    ) -> Callable[Concatenate[Any, HttpRequest, Rest], Page]:
        @functools.wraps(view)
        def guarded(page: Any, request: HttpRequest, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Page:
            return TURNS.answer(
                request,
                kind,
                lambda: view(page, request, *args, **kwargs),
                is_newest_wanted=is_newest_wanted,
            )

        return guarded

    return decorate
