"""The signature of an SNS message, and the confirmation of a subscription.

From the SNS developer guide, "Verifying the signatures of Amazon SNS messages" and "Parsing message formats".
It requests URLs only of sns.<region>.amazonaws.com, over HTTPS and without following redirects.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import re
from collections.abc import Mapping
from typing import Any

import requests
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from django.conf import settings

from notifications.providers.webhook import Unsigned, Unverifiable

_HOST = r"https://sns\.[a-z0-9-]{1,40}\.amazonaws\.com/"
_CERTIFICATE_URL = re.compile(_HOST + r"SimpleNotificationService-[0-9A-Za-z]{1,100}\.pem")
_SUBSCRIBE_URL = re.compile(_HOST + r"\?Action=ConfirmSubscription&[!-~]{1,2000}")
_HASHES: dict[str, type[hashes.HashAlgorithm]] = {"1": hashes.SHA1, "2": hashes.SHA256}
_SIGNED = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": (
        *("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    ),
}
_SIGNED["UnsubscribeConfirmation"] = _SIGNED["SubscriptionConfirmation"]


def verify(message: Mapping[str, Any]) -> None:
    """Raise `Unsigned` unless SNS signed the message, or `Unverifiable` if its certificate cannot be fetched.

    The process caches certificates.
    """
    url, kind = message.get("SigningCertURL"), message.get("Type")
    algorithm = _HASHES.get(str(message.get("SignatureVersion")))
    if not isinstance(url, str) or not _CERTIFICATE_URL.fullmatch(url) or algorithm is None:
        raise Unsigned
    names = [name for name in _SIGNED.get(str(kind), ()) if message.get(name) is not None]
    text = "".join(f"{name}\n{message[name]}\n" for name in names)
    certificate = _certificate(url)
    now = dt.datetime.now(dt.UTC)
    key = certificate.public_key()
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise Unsigned
    if not names or not isinstance(key, RSAPublicKey):
        raise Unsigned
    try:
        signature = base64.b64decode(message["Signature"], validate=True)
        key.verify(signature, text.encode(), padding.PKCS1v15(), algorithm())
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        raise Unsigned from error


def confirm(message: Mapping[str, Any]) -> None:
    """Confirm the subscription of a verified message. Raise `Unsigned`, or `Unverifiable` if SNS fails."""
    url = message.get("SubscribeURL")
    if not isinstance(url, str) or not _SUBSCRIBE_URL.fullmatch(url):
        raise Unsigned
    _get(url)


@functools.lru_cache(maxsize=16)  # a new certificate of SNS has a new URL
def _certificate(url: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_get(url))
    except ValueError as error:
        raise Unverifiable from error


def _get(url: str) -> bytes:
    timeout = (settings.EMAIL_CONNECT_TIMEOUT, settings.EMAIL_READ_TIMEOUT)
    try:
        answer = requests.get(url, timeout=timeout, allow_redirects=False)
    except requests.RequestException as error:
        raise Unverifiable from error
    if answer.status_code != 200:
        raise Unverifiable
    return answer.content
