"""The texts in an e-mail's headers, which mail programs must show as they were written.

They would decode a name such as `=?utf-8?b?UGF5UGFs?=` (an encoded word, RFC 2047) and show another one.
"""

from __future__ import annotations

import base64
from email.headerregistry import Address
from email.utils import getaddresses

from django.core.mail import EmailMultiAlternatives

from runtime.texts import one_line

#: Bytes of one encoded word. It then has 64 characters, and fits after the longest of our header names into
#: a line of 76. Python's `Header` makes words of up to 78, where RFC 2047 allows 75.
_WORD_BYTES = 39


def encode_headers(message: EmailMultiAlternatives) -> None:
    """Encode each header that is not ASCII or contains `=?`, for a message that is sent as MIME."""
    message.subject = encode_text(str(message.subject))
    message.from_email = _encode_addresses(message.from_email)
    message.to = [_encode_addresses(header) for header in message.to]
    message.reply_to = [_encode_addresses(header) for header in message.reply_to]


def encode_text(text: str) -> str:
    """Return a text as encoded words if mail programs would not show it as it is.

    >>> encode_text("Order"), encode_text("=?utf-8?b?UGF5UGFs?=")
    ('Order', '=?utf-8?b?PT91dGYtOD9iP1VHRjVVR0ZzPz0=?=')
    """
    if _is_shown_as_it_is(text):
        return text
    words, word = [], b""
    for character in text:
        encoded = character.encode("utf-8", "replace")
        if len(word) + len(encoded) > _WORD_BYTES:
            words.append(word)
            word = b""
        word += encoded
    # Readers drop the spaces between encoded words.
    return " ".join(f"=?utf-8?b?{base64.b64encode(word).decode()}?=" for word in [*words, word])


def break_encoded_words(text: str) -> str:
    """Return a text that nobody decodes, for an API that takes texts and encodes them itself."""
    return text.replace("=?", "= ?")


def formatted_address(*, name: str, recipient_email: str) -> str:
    """Return a header's "name <address>", with the name as the e-mail shows it."""
    name = one_line(name)
    user, _, domain = recipient_email.rpartition("@")
    return str(Address(display_name=name, username=user, domain=domain)) if name else recipient_email


def _is_shown_as_it_is(text: str) -> bool:
    return text.isascii() and "=?" not in text


def _encode_addresses(header: str) -> str:
    if _is_shown_as_it_is(header):
        return header
    return ", ".join(
        formatted_address(name=encode_text(name), recipient_email=address)
        for name, address in getaddresses([header])
    )
