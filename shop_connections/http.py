"""Ask a shop's API, as patiently as the shop wishes, until the time for all requests is over."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from runtime.bounded_http import Call, HttpAnswer, NotInTime, Unreachable, ask, follow_redirects, origin_of

MOST_BYTES = 16_000_000  # of an answer, also of what gzip makes of it
ANSWER_SECONDS = 60.0
_MOST_PAUSES = 3
_LONGEST_PAUSE_SECONDS = 60.0


class ShopUnreachable(Exception):
    """The shop's orders cannot be read. The text says why, and has no key in it."""


class OutOfTime(ShopUnreachable):
    """The time that the caller gave is over. `place` is where a later reading goes on."""

    def __init__(self, text: str, *, place: Any = None) -> None:
        super().__init__(text)
        self.place = place


class ShopApi:
    """Sends requests with a key and its secret, or with a token, until the time for all of them is over."""

    def __init__(
        self,
        *,
        key: str = "",
        secret: str = "",
        token: str = "",
        is_private_allowed: bool,
        seconds: float,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._auth: AuthBase = HTTPBasicAuth(key.encode(), secret.encode()) if key else _Bearer(token)
        self._is_private_allowed, self._sleep = is_private_allowed, sleep
        self._seconds, self._ends_at = seconds, time.monotonic() + seconds

    def get(self, url: str) -> HttpAnswer:
        """Return the shop's answer. Follow redirects on the host, and wait if the shop asks for it."""
        try:
            return follow_redirects(url, self._ask_patiently, server="shop")
        except Unreachable as error:
            raise ShopUnreachable(str(error)) from None

    def post(self, url: str, document: Mapping[str, Any]) -> HttpAnswer:
        """Return the shop's answer to a question in JSON. It changes nothing there, so it may be repeated."""
        answer = self._ask_patiently(url, json.dumps(document).encode())
        if answer.is_redirect:
            host = urlsplit(answer.headers.get("Location", "")).hostname or "another address"
            raise ShopUnreachable(f"The shop redirects to {host[:100]}. Enter the address of its API.")
        return answer

    def _ask_patiently(self, url: str, body: bytes | None = None) -> HttpAnswer:
        pauses = 0
        while True:
            self._check(url)
            answer = self._ask(url, body)
            if answer.status not in (429, 503) or pauses >= _MOST_PAUSES:
                return answer
            pauses += 1
            self._pause(answer.headers.get("Retry-After", ""))

    def _check(self, url: str) -> None:
        try:
            scheme, _, _ = origin_of(url)
        except ValueError:
            raise ShopUnreachable("The shop's address is not like https://shop.example.") from None
        if scheme != "https" and not (scheme == "http" and self._is_private_allowed):
            raise ShopUnreachable("The shop's address must begin with https://.")

    def _pause(self, retry_after: str) -> None:
        try:
            seconds = max(1.0, Retry().parse_retry_after(retry_after))
        except (HTTPError, ValueError, OverflowError):
            seconds = 5.0
        if seconds > _LONGEST_PAUSE_SECONDS or time.monotonic() + seconds > self._ends_at:
            raise ShopUnreachable(f"The shop asks to wait {math.ceil(seconds)} s.")
        self._sleep(seconds)

    def _ask(self, url: str, body: bytes | None) -> HttpAnswer:
        seconds = min(ANSWER_SECONDS, self._ends_at - time.monotonic())
        if seconds <= 0:
            raise OutOfTime(f"The shop took longer than {self._seconds:.0f} s for all its orders.")
        call = Call(
            url=url,
            server="shop",
            most_bytes=MOST_BYTES,
            is_private_allowed=self._is_private_allowed,
            headers={"Accept": "application/json"}
            | ({} if body is None else {"Content-Type": "application/json"}),
            auth=self._auth,
            body=body,
        )
        try:
            return ask(call, seconds=seconds)
        except NotInTime as error:
            raise (ShopUnreachable if seconds >= ANSWER_SECONDS else OutOfTime)(str(error)) from None
        except Unreachable as error:
            raise ShopUnreachable(str(error)) from None


class _Bearer(AuthBase):
    """Authorizes requests with a token, or not at all."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request
