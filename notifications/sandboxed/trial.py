"""Render a draft in a process of its own, which ends within seconds and cannot fill this one's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings

from notifications.parts import RenderedEmail
from notifications.sandboxed.child import OUTPUT_BYTES

#: The child's CPU time has its own limit. This one is for a child that waits.
SECONDS = 15.0
#: So many drafts may be rendered at the same time by one process, and others wait so long for them. Requests
#: that wait hold the threads that orders need.
AT_ONCE, WAIT_SECONDS = 2, 5.0

COMMAND = (sys.executable, "-m", "notifications.sandboxed.child")

log = structlog.get_logger(__name__)
_free = threading.BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a draft. The part is "" and the line 0 if they are not known."""

    part: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"{self.part}, line {self.line}" if self.line else self.part
        return f"{where}: {self.text}" if where else self.text


@dataclass(frozen=True, slots=True)
class Tried:
    """The first e-mail that a draft rendered, or its mistakes."""

    mail: RenderedEmail | None
    mistakes: Sequence[Mistake] = ()


def try_draft(
    *,
    parts: Mapping[str, str],
    folders: Sequence[str],
    renderings: Sequence[tuple[str, Mapping[str, Any]]],
    known: Collection[str],
    attributes: Collection[str],
    is_checked: bool,
) -> Tried:
    """Render the `parts` once with each pair of a language and its data, which must be plain JSON.

    `known` are the variables, and `attributes` the names that may follow a point. With `is_checked`, check
    each e-mail, too.
    """
    job = {
        "parts": dict(parts),
        "folders": list(folders),
        "renderings": [{"language": language, "data": data} for language, data in renderings],
        "known": sorted(known),
        "attributes": sorted(attributes),
        "is_checked": is_checked,
    }
    if not _free.acquire(timeout=WAIT_SECONDS):
        return _failed("Other drafts are being rendered. Try again in a moment.")
    try:
        text, code = _run(json.dumps(job).encode())
    finally:
        _free.release()
    try:
        given = json.loads(text)
    except ValueError:
        log.warning("draft stopped its process", code=code)
        return _failed("It takes too long, or needs too much memory. Look for loops and long texts.")
    mail = given["mail"]
    return Tried(
        mail=RenderedEmail(**mail) if mail else None,
        mistakes=[Mistake(**mistake) for mistake in given["errors"]],
    )


def _failed(text: str) -> Tried:
    return Tried(mail=None, mistakes=[Mistake("", 0, text)])


def _run(job: bytes) -> tuple[bytes, int | None]:
    """Return what the process wrote, and its exit code. Files in memory cannot block as pipes can."""
    given, written = os.memfd_create("job"), os.memfd_create("answer")
    try:
        with os.fdopen(os.dup(given), "wb") as file:
            file.write(job)
        os.lseek(given, 0, os.SEEK_SET)
        process = subprocess.Popen(
            COMMAND,
            stdin=given,
            stdout=written,
            stderr=subprocess.DEVNULL,
            cwd=settings.BASE_DIR,
            env={"PATH": os.defpath, "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return b"", None
        return os.pread(written, OUTPUT_BYTES, 0), code
    finally:
        os.close(given)
        os.close(written)
