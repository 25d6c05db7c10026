"""Which posts come from the shop: those at the installation's own address, signed with Saleor's key.

Saleor signs the webhooks of all its apps with one key and names no audience, and an app chooses what its
bodies say. So the address has a secret, which no other app knows (`install.route`). The signature is a
detached JWS (RFC 7797): two dots, between which the body belongs as it is.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from events.consuming.envelope import DEEPEST
from shop_connections.models import ShopConnection
from shop_connections.saleor.values import Json, member, members, text
from web.api.bodies import NotStrict, parse_json

HEADER = "Saleor-Signature"
#: Of keys with 2048 to 8192 bits.
_SIGNATURE = re.compile(r"([A-Za-z0-9_-]{1,1000})\.\.([A-Za-z0-9_-]{342,1366})")
_PLACE = re.compile(r"[A-Za-z0-9_-]{1,100}/(posts|register)")
#: The bytes of a post with a token.
MOST_REGISTERED = 10_000
_MOST_KEYS, _MOST_READ, _BITS = 20, 200, range(2048, 8193)


def may_be_signed(*, rest: str, headers: Mapping[str, str]) -> bool:
    """Return whether a post there with these headers could be signed, or have an installation's token."""
    place = _PLACE.fullmatch(rest)
    if place is None:
        return False
    if place[1] == "posts":
        return _SIGNATURE.fullmatch(headers.get(HEADER) or "") is not None
    length = headers.get("Content-Length") or ""
    return length.isascii() and length.isdecimal() and int(length) <= MOST_REGISTERED


def is_authentic(connection: ShopConnection, *, body: bytes, headers: Mapping[str, str]) -> Any:
    """Return the verdict on a post at the installation's own address."""
    match = _SIGNATURE.fullmatch(headers.get(HEADER) or "")
    header = _read_header(match[1]) if match else None
    if match is None or header is None:
        return "no"
    jwk = members({"keys": connection.installation.get("keys")}, "keys")
    key = next((each for each in jwk if each.get("kid") == header["kid"]), None)
    if key is None:
        return "later"
    try:
        public = _make_key(str(key.get("n")), str(key.get("e")))
        public.verify(_decode(match[2]), match[1].encode() + b"." + body, padding.PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError):
        return "no"
    return _whose(connection, body)


def _read_header(text: str) -> Json | None:
    """Return the header of a JWS that is signed as Saleor signs, or None."""
    try:
        header = json.loads(_decode(text))
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or not isinstance(header.get("kid"), str):
        return None
    # The key is RS256's, whatever the header says. Its only extension is that the body is not encoded.
    is_ours = header.get("alg") == "RS256" and header.get("b64") is False and header.get("crit") == ["b64"]
    return header if is_ours else None


def _whose(connection: ShopConnection, body: bytes) -> Any:
    """Return the verdict on a body that Saleor signed: it may be of another app, or of another channel."""
    try:
        document = parse_json(body, deepest=DEEPEST)
    except NotStrict:
        return "yes"  # stored for a person
    if not isinstance(document, dict):
        return "yes"
    installation = connection.installation
    if text(member(document, "recipient").get("id")) != installation.get("app"):
        return "no"
    channel = text(member(member(document, "about"), "channel").get("slug"))
    return "other" if installation.get("channel") and channel != installation["channel"] else "yes"


def clean_keys(keys: Iterable[Json]) -> list[dict[str, str]]:
    """Return the first keys that can verify, with what that needs."""
    cleaned: list[dict[str, str]] = []
    for key in itertools.islice(keys, _MOST_READ):
        if len(cleaned) == _MOST_KEYS:
            break
        n, e, kid = (key.get(name) for name in ("n", "e", "kid"))
        if not (isinstance(n, str) and isinstance(e, str) and isinstance(kid, str)):
            continue
        if key.get("kty") != "RSA" or key.get("use", "sig") != "sig" or len(kid) > 200:
            continue
        try:
            _make_key(n, e)
        except ValueError:
            continue
        cleaned.append({"kid": kid, "n": n, "e": e})
    return cleaned


@functools.lru_cache(maxsize=32)
def _make_key(n: str, e: str) -> rsa.RSAPublicKey:
    """Return the key of a JWK (RFC 7517). Raise `ValueError`."""
    if len(n) > 1366 or len(e) > 10:
        raise ValueError("too large")
    modulus, exponent = (int.from_bytes(_decode(part)) for part in (n, e))
    if modulus.bit_length() not in _BITS:
        raise ValueError("too small")
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


def _decode(text: str) -> bytes:
    """Decode base64url without padding. Raise `ValueError`."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
