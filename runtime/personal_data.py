"""Personal data: the replacements of erased data, hashes of addresses and keys, and addresses in texts."""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Callable, Iterator

from django.conf import settings

from runtime.addresses import LONGEST, as_stored

ERASED = "[erased]"
#: Replaces an address. The domain can never exist (RFC 2606).
ERASED_ADDRESS = "erased@privacy.invalid"

_AT = re.compile("@")
#: What no local part of an address contains.
_SEPARATOR = re.compile(r"""[\s@"<>(),:;\[\]\\\x00-\x1f]""")
_DOMAIN = re.compile(rf"(?:[^\W_]|[.-]){{1,{LONGEST}}}")
#: A domain outside ASCII may also have the dots of Chinese and Japanese, marks such as vowel signs, and
#: joiners and invisible characters, which UTS 46 drops.
_DOTS = "\u3002\uff0e\uff61"
_MARKS = ("Mn", "Mc")
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
#: RFC 5322 allows these in a local part, but `email=ann@…` and `refund/ann@…` are more common.
_RARE = re.compile(r"[=/|`{}]")
_TOP_LEVEL_DOMAIN = re.compile(r"xn--[a-z0-9-]+|[^\W\d_]{2,63}", re.IGNORECASE)
#: An escape in JSON, or in JSON inside a JSON string: a character's code, white space or a slash. It begins
#: at the first backslash. Otherwise many backslashes would take quadratic time.
_ESCAPE = re.compile(r"(?<!\\)\\+(?:u([0-9a-fA-F]{4})|[nrtbf]|(/))")


def address_hash(recipient_email: str) -> str:
    """Return the HMAC-SHA256 (hex) of an address with PRIVACY_KEY, as it is stored, in any case."""
    key, text = str(settings.PRIVACY_KEY), as_stored(recipient_email).lower()
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def hashes_in(*texts: str) -> list[str]:
    """Return the `address_hash` of each address in some texts, for a row that keeps them as they came."""
    addresses = {address for text in texts for address in find_addresses(text)} - {ERASED_ADDRESS}
    return sorted(map(address_hash, addresses))


def key_hash(key: str) -> str:
    """Return the hash of a caller's idempotency key (`sha256:` and 64 hex digits).

    A key may be any text, also a personal one.
    """
    return f"sha256:{hashlib.sha256(f'{settings.PRIVACY_KEY}:{key}'.encode()).hexdigest()}"


def find_addresses(text: str) -> set[str]:
    r"""Return the complete addresses in a text, even if JSON escapes their characters.

    They have the form in which they are stored, in lower case.

    An address ends with its domain. If that end is uncertain, return both readings.

    >>> sorted(find_addresses("refund:Ann@example.com, 'jo-ann@example.co.uk'"))
    ['ann@example.com', 'jo-ann@example.co.uk']
    >>> sorted(find_addresses("o'ann@example.com b'ann@example.com' \\nann\\u0040example.com."))
    ['ann@example.com', "o'ann@example.com"]
    >>> sorted(find_addresses("ann@example.com-018f, Ann@EXÄMPLE.com"))
    ['ann@example.com', 'ann@example.com-018f', 'ann@xn--exmple-cua.com']
    """
    return {address for _, _, addresses in _found(_plain(text)) for address in addresses}


class AddressGiven(ValueError):
    """A text that would be kept has an e-mail address."""


def refuse_addresses(*texts: str) -> None:
    """Raise `AddressGiven` if somebody typed an address into a text that is kept, such as a reason."""
    if any(map(find_addresses, texts)):
        raise AddressGiven("Leave the e-mail address out, because this text is kept. Give an id instead.")


def without_addresses(text: str) -> str:
    """Replace all addresses in a text, as `hide_addresses` does."""
    return hide_addresses(text, but=ERASED_ADDRESS.__eq__)


def hide_addresses(text: str, *, but: Callable[[str], bool]) -> str:
    """Replace the addresses in a text for which `but` is false. Then also resolve JSON's escapes.

    >>> hide_addresses("from ann@example.com to Bob@Example.com", but="ann@example.com".__eq__)
    'from ann@example.com to erased@privacy.invalid'
    """
    plain = _plain(text)
    hidden = [(start, end) for start, end, addresses in _found(plain) if not any(map(but, addresses))]
    if not hidden:
        return text
    shown, after = [], 0
    for start, end in hidden:
        if start >= after:
            shown += [plain[after:start], ERASED_ADDRESS]
        after = max(after, end)
    return "".join([*shown, plain[after:]])


def _found(plain: str) -> Iterator[tuple[int, int, set[str]]]:
    """Yield the widest bounds of each address, and the addresses that it may be, as stored, in lower case."""
    for before, at in locals_in(plain, _AT):
        domains = _domains(plain, at.end())
        locals_ = {
            local
            for _, end in domains
            for local in _locals(before[-LONGEST:], in_quotes=plain[end : end + 1] == "'")
        }
        if locals_:
            start = at.start() - max(map(len, locals_))
            end = max(end for _, end in domains)
            yield (
                start,
                end,
                {as_stored(f"{local}@{domain}").lower() for local in locals_ for domain, _ in domains},
            )


def locals_in(text: str, sign: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield each `@`, which `sign` matches, after the longest text before it that may be a local part.

    Searching backwards from each `@` reads no character twice. A pattern that begins at each local part would
    take quadratic time for a text of many quotes.
    """
    after = 0
    for at in sign.finditer(text):
        before, after = text[after : at.start()], at.end()
        separator = _SEPARATOR.search(before[::-1])
        yield before[len(before) - separator.start() :] if separator else before, at


def _plain(text: str) -> str:
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16)) if escape[1] else escape[2] or " "
    return character if character.isprintable() or character in _INVISIBLE else " "


def _locals(local: str, *, in_quotes: bool) -> set[str]:
    if in_quotes and "'" in local:
        local = local.partition("'")[2]
    whole, local = local.lstrip("."), local.lstrip("'.")  # an apostrophe may begin an address, or quote it
    return {whole, local, _RARE.split(local)[-1]} - {""}


def _domains(text: str, start: int) -> list[tuple[str, int]]:
    """Return the domains that may begin at `start`, each with its end.

    Outside ASCII, it may end before the first character of `_DOTS`, `_MARKS` or `_INVISIBLE`, after them, or
    before the last of `_DOTS`, which may end the sentence.
    """
    match = _DOMAIN.match(text, start)
    if not match:
        return []
    wide = _wide_end(text, match.end(), start + LONGEST)
    ends = {match.end(), wide, *(text.rfind(dot, start, wide) for dot in _DOTS)} - {-1}
    readings = {domain for end in ends for domain in _readings(text[start:end])}
    return [(reading, start + len(reading)) for reading in readings if reading]


def _wide_end(text: str, end: int, last: int) -> int:
    """Return the end of a domain that continues at `end` with characters outside ASCII."""
    for character in text[end:last]:
        is_mark = character in _DOTS or character in _INVISIBLE or unicodedata.category(character) in _MARKS
        if not (character.isalnum() or character in ".-" or is_mark):
            break
        end += 1
    return end


def _readings(text: str) -> list[str]:
    """Return the longest domain and the longest with a possible top-level domain.

    `-018f` is cut from `example.com-018f`, but `-op.com` is not cut from `example.co-op.com`.
    """
    whole = domain = text.rstrip(f".-{_DOTS}")
    while domain and not _TOP_LEVEL_DOMAIN.fullmatch(domain.rpartition(".")[2]):
        domain = domain[: max(domain.rfind("."), domain.rfind("-"), 0)].rstrip(".-")
    return [whole, domain] if "." in domain and domain != whole else [whole]
