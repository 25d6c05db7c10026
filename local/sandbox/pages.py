"""The sandbox's pages for people: the accepted mails, one mail in full, and a panel that sets faults.

All values of a mail are escaped. A mail's HTML has its own URL, whose policy forbids scripts, and loading
anything but images.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

from local.sandbox.faults import Fault
from local.sandbox.mails import Mail
from local.sandbox.state import SandboxState
from notifications.providers.dialect import ProviderAnswer

_ASSETS = Path(__file__).parent / "assets"
_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
_PAGE_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; frame-src 'self';"
    " img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
#: A mail's logo may be anywhere.
_MAIL_POLICY = "sandbox; default-src 'none'; img-src data: https: http:; style-src 'unsafe-inline'"
_LISTED = 200

_PAGE = Template((_ASSETS / "page.html").read_text(encoding="utf-8"))
_LIST = Template((_ASSETS / "list.html").read_text(encoding="utf-8"))
_MAIL = Template((_ASSETS / "mail.html").read_text(encoding="utf-8"))
_FAULT_WORDS = {
    "status": "answers {status}",
    "accept_then_status": "takes the mail, then answers {status}",
    "hang": "hangs",
    "reset": "resets connections",
    "garbage": "answers garbage",
    "accept_then_hang": "takes the mail, then hangs",
    "accept_then_reset": "takes the mail, then resets",
    "accept_then_garbage": "takes the mail, then answers garbage",
    "slow": "answers slowly",
    "refuse": "refuses connections",
}


def answer(*, state: SandboxState, path: str, query: Mapping[str, str]) -> ProviderAnswer:
    """Return the page at a path, or a 404."""
    match path.strip("/").split("/"):
        case [""]:
            return _list_page(state, query.get("q", ""))
        case ["live"]:
            return _html(_live(state, query.get("q", "")))
        case ["mails", message_id] if mail := state.mailbox.get(message_id):
            return _mail_page(mail)
        case ["mails", message_id, "html"] if mail := state.mailbox.get(message_id):
            return _html(mail.html or "<p>No HTML part.</p>", policy=_MAIL_POLICY)
        case ["assets", ("page.css" | "page.js") as name]:
            file = _ASSETS / name
            return ProviderAnswer(200, file.read_bytes(), _MEDIA_TYPES[file.suffix])
        case ["mails", *_]:
            return _not_found(
                "The mailbox does not have this e-mail. It was never accepted, or newer ones replaced it."
            )
    return _not_found("This page does not exist.")


def _list_page(state: SandboxState, search: str) -> ProviderAnswer:
    body = _LIST.substitute(search=_escape(search), live=_live(state, search))
    return _html(_PAGE.substitute(title="E-mails", body=body))


def _live(state: SandboxState, search: str) -> str:
    """Render the part of the list that page.js refreshes: the provider's state and the mails."""
    stats = state.mailbox.stats()
    faults = state.faults.all()
    if faults:
        health = f'<p class="state broken" role="status">Provider {"; ".join(map(_words, faults))}</p>'
    else:
        health = '<p class="state" role="status">Provider is healthy</p>'
    counts = [f"<b>{stats['accepted']:,}</b> accepted", f"<b>{stats['requests']:,}</b> requests"]
    if stats["doubled"]:
        counts.append(f'<b class="bad">{len(stats["doubled"]):,}</b> doubled')
    mails = state.mailbox.find(search=search, limit=_LISTED)
    rows = "".join(map(_row, mails))
    if not rows:
        reason = "No mail matches." if search else "No mail yet. The page refreshes automatically."
        rows = f'<li class="empty">{reason}</li>'
    note = f'<p class="note">The newest {_LISTED} of them.</p>' if len(mails) == _LISTED else ""
    return f'{health}<p class="counts">{" · ".join(counts)}</p><ol class="mails">{rows}</ol>{note}'


def _words(fault: Fault) -> str:
    what = _FAULT_WORDS[fault.kind].format(status=fault.status)
    begins = re.fullmatch(r"\^([\w-]+)", fault.to or "")  # as the demo's faults do
    who = f" for {begins[1]}…" if begins else f" for {_escape(fault.to)}" if fault.to else ""
    share = f", {fault.probability:.0%} of requests" if fault.probability < 1 else ""
    left = f", {fault.times - fault.met} more times" if fault.times is not None else ""
    return what + who + share + left


def _row(mail: Mail) -> str:
    return (
        f'<li><a href="/mails/{mail.message_id}">'
        f'<span class="subject">{_escape(mail.subject)}</span>'
        f'<span class="to">{_escape(mail.to)}</span>'
        f"{_chip(mail)}{_time(mail)}</a></li>"
    )


def _mail_page(mail: Mail) -> ProviderAnswer:
    body = _MAIL.substitute(
        subject=_escape(mail.subject),
        sender=_escape(mail.from_email),
        to=_escape(mail.to),
        chip=_chip(mail),
        time=_time(mail),
        message_id=mail.message_id,
        text=_escape(mail.text or "No text part."),
        headers=_table(mail.headers),
        custom_args=_table(mail.custom_args),
        request_headers=_table(mail.request_headers),
        payload=_escape(json.dumps(mail.payload, indent=2, ensure_ascii=False)),
    )
    return _html(_PAGE.substitute(title=_escape(mail.subject), body=body))


def _table(values: Mapping[str, str]) -> str:
    rows = "".join(
        f"<div><dt>{_escape(name)}</dt><dd>{_escape(value)}</dd></div>" for name, value in values.items()
    )
    return f"<dl>{rows}</dl>" if rows else '<p class="note">None.</p>'


def _chip(mail: Mail) -> str:
    return f'<span class="chip">{_escape(mail.event_type)}</span>' if mail.event_type else "<span></span>"


def _time(mail: Mail) -> str:
    at = mail.received_at
    return f'<time datetime="{at.isoformat()}">{at:%H:%M:%S} UTC</time>'


def _not_found(reason: str) -> ProviderAnswer:
    body = f'<p class="missing">{_escape(reason)}</p><p><a href="/">All mails</a></p>'
    return _html(_PAGE.substitute(title="Not found", body=body), status=404)


def _html(text: str, *, status: int = 200, policy: str = _PAGE_POLICY) -> ProviderAnswer:
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    # JSON can contain a lone surrogate, which UTF-8 cannot encode.
    return ProviderAnswer(status, text.encode("utf-8", "replace"), "text/html; charset=utf-8", headers)


def _escape(value: object) -> str:
    return html.escape(str(value), quote=True)
