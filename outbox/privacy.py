"""Personal data: the replacements of erased data, hashes of addresses and keys, and addresses in texts."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator

from django.conf import settings

ERASED = "[erased]"
#: Replaces an address. The domain can never exist (RFC 2606).
ERASED_ADDRESS = "erased@privacy.invalid"

#: RFC 3696: no address is longer.
_LONGEST = 254
_LOCAL = re.compile(r"""[^\s@"<>(),:;\[\]\\\x00-\x1f]+\Z""")
_DOMAIN = re.compile(rf"(?:[^\W_]|[.-]){{1,{_LONGEST}}}")
#: RFC 5322 allows these in a local part, but `email=ann@…` and `refund/ann@…` are more common.
_RARE = re.compile(r"[=/|`{}]")
_TOP_LEVEL_DOMAIN = re.compile(r"xn--[a-z0-9-]+|[^\W\d_]{2,63}", re.IGNORECASE)
#: An escape in JSON, or in JSON inside a JSON string: a character's code, white space or a slash.
_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|[nrtbf]|(/))")


def address_hash(recipient_email: str) -> str:
    """Return the HMAC-SHA256 (hex) of an address with PRIVACY_KEY. Ignore case and surrounding spaces."""
    key, text = str(settings.PRIVACY_KEY), recipient_email.strip().lower()
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def key_hash_salt() -> str:
    """Return the secret prefix for hashing an idempotency key."""
    return f"{settings.PRIVACY_KEY}:"


def key_hash(key: str) -> str:
    """Return the hash of a caller's idempotency key (`sha256:` and 64 hex digits).

    A key may be any text, so it may be personal. `outbox.models.outgoing` does the same in SQL.
    """
    return f"sha256:{hashlib.sha256((key_hash_salt() + key).encode()).hexdigest()}"


def find_address_hashes(text: str) -> set[str]:
    """Return the hash of each complete address in a text."""
    return {address_hash(address) for address in find_addresses(text)}


def find_addresses(text: str) -> set[str]:
    r"""Return the complete addresses in a text, in lower case, even if JSON escapes their characters.

    An address ends with its domain. If that end is uncertain, return both readings.

    >>> sorted(find_addresses("refund:Ann@example.com, 'jo-ann@example.co.uk'"))
    ['ann@example.com', 'jo-ann@example.co.uk']
    >>> sorted(find_addresses("o'ann@example.com b'ann@example.com' \\nann\\u0040example.com."))
    ['ann@example.com', "o'ann@example.com"]
    >>> sorted(find_addresses("ann@example.com-018f"))
    ['ann@example.com', 'ann@example.com-018f']
    """
    return {address for _, _, addresses in _found(_plain(text)) for address in addresses}


class AddressGiven(ValueError):
    """A text that would be kept has an e-mail address."""


def refuse_addresses(*texts: str) -> None:
    """Raise `AddressGiven` if somebody typed an address into a text that is kept, such as a reason."""
    if any(map(find_addresses, texts)):
        raise AddressGiven("Leave the e-mail address out, because this text is kept. Give an id instead.")


def hide_addresses(text: str, *, but: Callable[[str], bool]) -> str:
    """Replace the addresses in a text for which `but` is false. Then also resolve JSON's escapes.

    >>> hide_addresses("from ann@example.com to Bob@Example.com", but="ann@example.com".__eq__)
    'from ann@example.com to erased@privacy.invalid'
    """
    plain = _plain(text)
    hidden = [(start, end) for start, end, addresses in _found(plain) if not any(map(but, addresses))]
    if not hidden:
        return text
    for start, end in reversed(hidden):
        plain = plain[:start] + ERASED_ADDRESS + plain[end:]
    return plain


def _found(plain: str) -> Iterator[tuple[int, int, set[str]]]:
    """Yield the widest bounds of each address, and the addresses that it may be, in lower case."""
    for at in re.finditer("@", plain):
        domains = _domains(plain, at.end())
        locals_ = {
            local
            for _, end in domains
            for local in _locals(plain, at.start(), in_quotes=plain[end : end + 1] == "'")
        }
        if locals_:
            start = at.start() - max(map(len, locals_))
            end = max(end for _, end in domains)
            yield start, end, {f"{local}@{domain}".lower() for local in locals_ for domain, _ in domains}


def _plain(text: str) -> str:
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16)) if escape[1] else escape[2] or " "
    return character if character.isprintable() else " "


def _locals(text: str, end: int, *, in_quotes: bool) -> set[str]:
    found = _LOCAL.search(text, max(0, end - _LONGEST), end)
    local = found[0] if found else ""
    if in_quotes and "'" in local:
        local = local.partition("'")[2]
    local = local.lstrip("'.")
    return {local, _RARE.split(local)[-1]} - {""}


def _domains(text: str, start: int) -> list[tuple[str, int]]:
    """Return the longest domain and the longest with a possible top-level domain, each with its end.

    So `-018f` is cut from `example.com-018f`, but `-op.com` is not cut from `example.co-op.com`.
    """
    found = _DOMAIN.match(text, start)
    whole = domain = found[0].rstrip(".-") if found else ""
    while domain and not _TOP_LEVEL_DOMAIN.fullmatch(domain.rpartition(".")[2]):
        domain = domain[: max(domain.rfind("."), domain.rfind("-"), 0)].rstrip(".-")
    both = [whole, domain] if "." in domain and domain != whole else [whole]
    return [(one, start + len(one)) for one in both if one]
