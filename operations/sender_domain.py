"""Read SPF, DKIM, DMARC and their alignment for the sender's domain, and say what to change.

checkdmarc, of the extra `dns`, reads SPF and DMARC. A receiver's DMARC check passes if SPF or DKIM passes for
a domain that is aligned with that of the sender (RFC 7489, 3.1): the same, or with relaxed alignment one of
the same registered domain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from email.utils import parseaddr
from typing import TYPE_CHECKING, Any

from django.conf import settings

from notifications.providers.registry import Declaration, declarations

if TYPE_CHECKING:
    from dns.resolver import Resolver

#: Seconds to wait for an answer.
TIMEOUT_SECONDS = 3.0


class Unreadable(Exception):
    """The records cannot be read. The message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A record, or what to change about it."""

    topic: str
    is_good: bool
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Dns:
    """Questions to DNS. `resolver` is None for the one of this machine."""

    resolver: Resolver | None

    def texts(self, name: str) -> list[str]:
        """Return the TXT records of a name. Raise `Unreadable` if DNS does not answer."""
        from checkdmarc.utils import DNSException, DNSExceptionNXDOMAIN, get_txt_records

        try:
            return list(get_txt_records(name, resolver=self.resolver, timeout=TIMEOUT_SECONDS))
        except DNSExceptionNXDOMAIN:
            return []
        except DNSException as error:
            if "does not have any" in str(error):
                return []
            raise Unreadable(f"DNS does not answer for {name}: {error}") from error


def read_domain(*, selectors: Sequence[str] = (), resolver: Resolver | None = None) -> list[Finding]:
    """Return the findings about the domain of DEFAULT_FROM_EMAIL and each of EMAIL_PROVIDERS.

    `selectors` are further DKIM selectors, for providers that give each account its own. Raise `Unreadable`
    without the extra, or without DNS.
    """
    try:
        import checkdmarc.dmarc
        import checkdmarc.spf
        import dns.exception
        import dns.resolver
    except ImportError as error:
        raise Unreadable("Install checkdmarc (the extra dns) to read the DNS of the sender.") from error
    try:
        # The root has name servers wherever DNS works. A machine without DNS may answer "no such domain".
        (resolver or dns.resolver.Resolver()).resolve(".", "NS", lifetime=TIMEOUT_SECONDS)
    except (dns.exception.DNSException, OSError) as error:
        raise Unreadable(
            f"This machine has no DNS, so nothing was checked. Run the command where DNS works. {error}"
        ) from error
    domain = sender_domain()
    options: dict[str, Any] = {"resolver": resolver, "timeout": TIMEOUT_SECONDS}
    spf = checkdmarc.spf.check_spf(domain, **options)
    dmarc = checkdmarc.dmarc.check_dmarc(domain, **options)
    providers = [declarations()[name] for name in settings.EMAIL_PROVIDERS]
    ask = _Dns(resolver)
    return [
        *_spf(domain, spf, providers),
        *_dmarc(domain, dmarc),
        *(
            finding
            for declared in providers
            for finding in _provider(declared, domain, selectors, dmarc.get("tags") or {}, ask)
        ),
    ]


def sender_domain() -> str:
    """Return the domain of DEFAULT_FROM_EMAIL."""
    return parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2].lower()


def _spf(domain: str, found: dict[str, Any], providers: Sequence[Declaration]) -> Iterator[Finding]:
    record = str(found.get("record") or "")
    wanted = dict.fromkeys(f"include:{one.dns.spf}" for one in providers if one.dns.spf)
    if not record:
        words = " ".join(["v=spf1", *wanted, "~all"])
        yield Finding("SPF", False, f"{domain} has no SPF. Add a TXT record: {words}")
        return
    if not found["valid"]:
        yield Finding("SPF", False, f"Correct the SPF of {domain}: {found.get('error')} It is: {record}")
        return
    yield Finding("SPF", True, record)
    for warning in found.get("warnings") or ():
        yield Finding("SPF", False, str(warning))


def _dmarc(domain: str, found: dict[str, Any]) -> Iterator[Finding]:
    record = str(found.get("record") or "")
    if not record:
        words = f"Add a TXT record at _dmarc.{domain}: v=DMARC1; p=none; rua=mailto:dmarc@{domain}"
        yield Finding("DMARC", False, f"{domain} has no DMARC. {words}")
        return
    if not found["valid"]:
        yield Finding("DMARC", False, f"Correct the DMARC of {domain}: {found.get('error')} It is: {record}")
        return
    yield Finding("DMARC", True, f"{record} (at {found['location']})")
    if _tag(found["tags"], "p") == "none":
        text = "p=none lets anybody send as you. Set p=quarantine when the reports show that yours pass."
        yield Finding("DMARC", False, text)


def _provider(
    declared: Declaration, domain: str, more: Sequence[str], tags: dict[str, Any], ask: _Dns
) -> Iterator[Finding]:
    """Find the provider's DKIM key and its bounces' domain, and whether they align with the sender."""
    name, signing = declared.name, _signing_domain(declared, domain)
    selectors = [*declared.dns.selectors, *more]
    keys = [one for one in selectors if _has_key(ask.texts(f"{one}._domainkey.{signing}"))]
    if keys:
        yield Finding("DKIM", True, f"{name} can sign with {keys[0]}._domainkey.{signing}.")
    elif selectors:
        tried = ", ".join(selectors)
        text = f"Add the DKIM records that {name} shows for {signing}. No key is at the selectors {tried}."
        yield Finding("DKIM", False, text)
    else:
        text = f"Give the selector that {name} shows for {signing} as --selector: each account has its own."
        yield Finding("DKIM", False, text)
    dkim = bool(keys) and _is_aligned(signing, domain, _tag(tags, "adkim"))
    label = declared.dns.return_path
    bounces = signing if label == "" else f"{label}.{signing}"
    has_spf = label is not None and any(one.startswith("v=spf1") for one in ask.texts(bounces))
    spf = has_spf and _is_aligned(bounces, domain, _tag(tags, "aspf"))
    if dkim or spf:
        by = " and ".join(word for word, passes in (("DKIM", dkim), ("SPF", spf)) if passes)
        yield Finding("alignment", True, f"E-mails by {name} pass DMARC by {by}.")
    elif keys:
        text = f"{name} signs as {signing}, which is not {domain}. Set adkim=r, or sign as {domain}."
        yield Finding("alignment", False, text)
    else:
        text = f"E-mails by {name} fail DMARC for {domain} until its DKIM key is in DNS."
        yield Finding("alignment", False, text)


def _signing_domain(declared: Declaration, domain: str) -> str:
    """Return the domain as which a provider signs."""
    return str((declared.name == "mailgun" and settings.ANYMAIL.get("MAILGUN_SENDER_DOMAIN")) or domain)


def _has_key(records: Sequence[str]) -> bool:
    """Return whether one of the TXT records is a DKIM key that is not revoked (RFC 6376, 3.6.1)."""
    tags = (tag.strip().partition("=") for record in records for tag in record.split(";"))
    return any(name.strip() == "p" and value.strip() for name, _, value in tags)


def _is_aligned(one: str, sender: str, mode: str) -> bool:
    from checkdmarc.utils import get_base_domain

    return one == sender if mode == "s" else get_base_domain(one) == get_base_domain(sender)


def _tag(tags: dict[str, Any], name: str) -> str:
    return str((tags.get(name) or {}).get("value") or "")
