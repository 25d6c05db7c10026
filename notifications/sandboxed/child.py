"""The process that renders drafts: `python -m notifications.sandboxed.child`.

It reads a job as JSON from its standard input, and writes the answer as JSON to its standard output.
notifications.sandboxed.trial describes both. First it limits its own time, memory and output, because a draft
may contain anything. It has neither settings nor secrets.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import TemplateNotFound, TemplateSyntaxError

from notifications.parts import PARTS, find_place, render_parts
from notifications.sandboxed.environment import LimitReached, compile_part, limited, sandbox
from notifications.sandboxed.mail_checks import check_mail
from notifications.sandboxed.rules import Refused

CPU_SECONDS = 3
MEMORY_BYTES = 512 * 2**20
OUTPUT_BYTES = 4_000_000
_TEXT_LIMIT = 300


def set_limits() -> None:
    """Limit this process. The kernel kills it after `CPU_SECONDS` of CPU."""
    os.nice(5)  # requests come first
    for limit, most in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, OUTPUT_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a template and render it with all data of the job."""
    environment, compiled = sandbox(folders=job["folders"]), {}
    errors: list[dict[str, Any]] = []
    for name in PARTS:
        known = set(job["known"]) - ({"subject"} if name == "subject.txt" else set())
        try:
            template = compile_part(
                environment,
                name=name,
                source=job["parts"][name],
                attributes=job["attributes"],
                known=known,
            )
            compiled[name] = limited(template)
        except Exception as error:  # noqa: BLE001 - a draft may cause any
            errors.append(_describe(error, part=name))
    mail: dict[str, str] = {}
    for rendering in [] if errors else job["renderings"]:
        found = list(_render(compiled, rendering, job["is_checked"], mail))
        errors += [one for one in found if one not in errors]
    return {"errors": errors[:20], "mail": None if errors else mail}


def _render(
    compiled: Mapping[str, Any], rendering: Mapping[str, Any], is_checked: bool, first: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Render once, and yield the errors. Keep the first e-mail."""
    try:
        mail = render_parts(part=compiled.__getitem__, language=rendering["language"], data=rendering["data"])
    except Exception as error:  # noqa: BLE001 - a draft may cause any
        yield _describe(error, part="")
        return
    if not first:
        first |= {"subject": mail.subject, "body_html": mail.body_html, "body_text": mail.body_text}
    if is_checked:
        yield from ({"part": part, "line": 0, "text": text} for part, text in check_mail(mail))


def _describe(error: Exception, *, part: str) -> dict[str, Any]:
    match error:
        case Refused() | LimitReached():
            text = str(error)
        case TemplateNotFound():
            text = f"The file {error.name} does not exist."
        case TemplateSyntaxError():
            text = str(error.message)
        case RecursionError():
            text = "This is too deeply nested, or a file includes itself."
        case MemoryError():
            text = "This needs too much memory."
        case _:
            text = f"{type(error).__name__}: {error}"
    file, line = find_place(error) or (part, 0)
    line = getattr(error, "line", 0) or line
    return {"part": part or file, "line": line, "text": text[:_TEXT_LIMIT]}


def main() -> None:
    job = json.load(sys.stdin)
    set_limits()
    json.dump(answer(job), sys.stdout)


if __name__ == "__main__":
    main()
