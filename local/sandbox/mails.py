"""The mails that the sandbox has accepted, and counts of its requests.

The number and the size of kept mails are bounded. The counts for each notification stay when its mail is
dropped: a long chaos run can still find missing and doubled e-mails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

BUCKETS = 600  # seconds for which requests per second are kept


@dataclass(frozen=True)
class Mail:
    """One accepted request. `payload` parses `raw` each time it is read."""

    message_id: str
    received_epoch: float
    recipients: tuple[str, ...]
    subject: str
    custom_args: Mapping[str, str]
    request_headers: Mapping[str, str]
    raw: bytes  # JSON in the form of notifications/providers/dialect.py
    provider: str = ""

    @property
    def to(self) -> str:
        return ", ".join(self.recipients)

    @property
    def notification_id(self) -> str:
        return self.custom_args.get("notification_id", "")

    @property
    def order_id(self) -> str:
        return self.custom_args.get("order_id", "")

    @property
    def event_type(self) -> str:
        return self.custom_args.get("event_type", "")

    @property
    def received_at(self) -> datetime:
        return datetime.fromtimestamp(self.received_epoch, UTC)

    @property
    def payload(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.raw)
        return parsed

    @property
    def from_email(self) -> str:
        return str(self.payload["from"]["email"])

    @property
    def reply_to(self) -> list[dict[str, str]]:
        return list(self.payload.get("reply_to_list") or [])

    @property
    def headers(self) -> dict[str, str]:
        merged = dict(self.payload.get("headers") or {})
        for personalization in self.payload["personalizations"]:
            merged.update(personalization.get("headers") or {})
        return merged

    @property
    def text(self) -> str:
        return self._content("text/plain")

    @property
    def html(self) -> str:
        return self._content("text/html")

    def _content(self, media_type: str) -> str:
        parts = self.payload.get("content") or []
        return next((str(part["value"]) for part in parts if part["type"] == media_type), "")


class Mailbox:
    """The received mails and their counts. Any thread may call any method."""

    def __init__(self, *, max_mails: int, max_bytes: int) -> None:
        self._max_mails, self._max_bytes = max_mails, max_bytes
        self._changed = threading.Condition()
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._mails: deque[Mail] = deque()
        self._by_id: dict[str, Mail] = {}
        self._forget()

    def _forget(self) -> None:
        self._mails.clear()
        self._by_id.clear()
        self._bytes = 0
        self._requests = self._accepted = self._connections = 0
        self._requests_of: Counter[str] = Counter()
        self._accepted_of: Counter[str] = Counter()
        self._lost_answers_of: Counter[str] = Counter()
        self._doubled: dict[str, int] = {}
        self._answers: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._seconds: dict[int, int] = {}

    def connection_opened(self) -> None:
        with self._changed:
            self._connections += 1

    def requested(self, *, notification_id: str, provider: str) -> None:
        """Count one request to send, before it is answered."""
        second = int(time.time())
        with self._changed:
            self._requests += 1
            self._asked[provider] += 1
            if notification_id:
                self._requests_of[notification_id] += 1
            if second not in self._seconds:
                for old in [counted for counted in self._seconds if counted <= second - BUCKETS]:
                    del self._seconds[old]
            self._seconds[second] = self._seconds.get(second, 0) + 1

    def answered(self, *, answer: str) -> None:
        """Count one answer by its status, or by the kind of fault that replaced it."""
        with self._changed:
            self._answers[answer] += 1

    def answer_lost(self, *, notification_id: str) -> None:
        """Count one accepted mail whose sender gets no acceptance."""
        with self._changed:
            self._lost_answers_of[notification_id] += 1

    def keep_in(self, path: Path) -> None:
        """Load the mails of an earlier run from a file, and add each new one to it. They are not counted.

        A last line that a crash cut off is left out.
        """
        with self._changed:
            for line in path.read_bytes().splitlines() if path.exists() else []:
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    fields = json.loads(line)
                    fields |= {"raw": fields["raw"].encode(), "recipients": tuple(fields["recipients"])}
                    self._add(Mail(**fields))
            self._write_file(path)

    def _write_file(self, path: Path) -> None:
        """Write the kept mails alone. Those that were dropped must not fill the disk."""
        part = path.with_suffix(".part")
        part.write_bytes(b"".join(map(_as_line, self._mails)))
        part.chmod(0o600)
        part.replace(path)
        if self._file is not None:
            self._file.close()
        self._path, self._file = path, path.open("ab", buffering=0)

    def keep(self, *, mail: Mail) -> None:
        """Keep an accepted mail. Drop the oldest mails beyond the bounds."""
        with self._changed:
            self._add(mail)
            if self._file is not None and self._path is not None:
                self._file.write(_as_line(mail))
                if self._file.tell() > 2 * self._max_bytes:
                    self._write_file(self._path)
            self._accepted += 1
            if mail.notification_id:
                self._accepted_of[mail.notification_id] += 1
                if (count := self._accepted_of[mail.notification_id]) > 1:
                    self._doubled[mail.notification_id] = count
            self._changed.notify_all()

    def _add(self, mail: Mail) -> None:
        self._mails.append(mail)
        self._by_id[mail.message_id] = mail
        self._bytes += len(mail.raw)
        while len(self._mails) > self._max_mails or self._bytes > self._max_bytes:
            oldest = self._mails.popleft()
            del self._by_id[oldest.message_id]
            self._bytes -= len(oldest.raw)

    def all(self) -> list[Mail]:
        """Return the kept mails, oldest first."""
        with self._changed:
            return list(self._mails)

    def get(self, message_id: str) -> Mail | None:
        with self._changed:
            return self._by_id.get(message_id)

    def find(self, *, search: str = "", limit: int = 100) -> list[Mail]:
        """Return the newest mails with a field that contains `search`, in any case."""
        wanted = re.compile(re.escape(search.strip()), re.IGNORECASE) if search.strip() else None
        mails: list[Mail] = []
        for mail in reversed(self.all()):
            if len(mails) >= limit:
                break
            fields = (mail.to, mail.subject, mail.event_type, mail.order_id, mail.notification_id)
            if wanted and not any(wanted.search(field) for field in fields):
                continue
            mails.append(mail)
        return mails

    def wait_for(self, *, accepted: int, timeout_seconds: float) -> bool:
        """Wait until `accepted` mails were accepted in all. Return False after `timeout_seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._accepted >= accepted, timeout_seconds)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return (requests, acceptances) of each notification id, also for dropped mails."""
        with self._changed:
            return {key: (asked, self._accepted_of[key]) for key, asked in self._requests_of.items()}

    def lost_answers(self) -> dict[str, int]:
        """Return how often each notification was accepted while its sender got no acceptance."""
        with self._changed:
            return dict(self._lost_answers_of)

    def stats(self) -> dict[str, Any]:
        """Return the totals. `doubled` maps notification ids to acceptances, if more than one."""
        with self._changed:
            return {
                "requests": self._requests,
                "accepted": self._accepted,
                "requests_by_provider": dict(self._asked),
                "kept": len(self._mails),
                "answers": dict(self._answers),
                "notifications": len(self._requests_of),
                "doubled": dict(self._doubled),
                "connections": self._connections,
                "requests_per_second": {str(second): count for second, count in self._seconds.items()},
            }

    def clear(self) -> None:
        """Forget the mails and set every count to zero."""
        with self._changed:
            self._forget()
            if self._path is not None:
                self._write_file(self._path)


def _as_line(mail: Mail) -> bytes:
    fields = dataclasses.asdict(mail) | {"raw": mail.raw.decode("utf-8", "replace")}
    return json.dumps(fields).encode() + b"\n"
