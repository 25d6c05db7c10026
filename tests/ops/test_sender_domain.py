"""`manage.py providers domain` against a DNS server of its own: each wrong record is named."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Mapping

import checkdmarc.utils
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.resolver
import dns.rrset
import pytest
from django.core.management import CommandError, call_command

from local.machine import HOST, free_port
from operations import sender_domain

KEY = "v=DKIM1; k=rsa; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQ"
GOOD = {
    "shop.test": "v=spf1 ip4:192.0.2.1 -all",
    "_dmarc.shop.test": "v=DMARC1; p=reject",
    "s1._domainkey.shop.test": KEY,
}


class DnsServer:
    """Answers questions for TXT records of `records`. All other names do not exist."""

    def __init__(self, records: Mapping[str, str]) -> None:
        self.records = dict(records)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((HOST, 0))
        self.resolver = dns.resolver.Resolver(configure=False)
        self.resolver.nameservers, self.resolver.port = [HOST], self._socket.getsockname()[1]

    def __enter__(self) -> DnsServer:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.sendto(b"", self._socket.getsockname())

    def _serve(self) -> None:
        with self._socket:
            while True:
                asked, client = self._socket.recvfrom(4096)
                if not asked:
                    return
                self._socket.sendto(self._answer(asked), client)

    def _answer(self, asked: bytes) -> bytes:
        query = dns.message.from_wire(asked)
        name = query.question[0].name
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        record = self.records.get(name.to_text(omit_final_dot=True))
        if name.to_text() == ".":
            answer.answer.append(dns.rrset.from_text(name, 60, "IN", "NS", "a.root-servers.net."))
        elif record is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif query.question[0].rdtype == dns.rdatatype.TXT:
            answer.answer.append(dns.rrset.from_text(name, 60, "IN", "TXT", f'"{record}"'))
        return answer.to_wire()


@pytest.fixture(autouse=True)
def _shop(settings) -> None:
    settings.DEFAULT_FROM_EMAIL = "Shop <orders@shop.test>"
    settings.EMAIL_PROVIDERS = ["sendgrid"]
    checkdmarc.utils.DNS_CACHE.clear()


def read(records: Mapping[str, str], *selectors: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return what is good and what to change, by topic."""
    checkdmarc.utils.DNS_CACHE.clear()  # a test may read twice
    with DnsServer(records) as server:
        found = sender_domain.read_domain(selectors=selectors, resolver=server.resolver)
    good = {one.topic: one.text for one in found if one.is_good}
    return good, {one.topic: one.text for one in found if not one.is_good}


def test_right_records_pass():
    good, wrong = read(GOOD)
    assert good == {
        "SPF": "v=spf1 ip4:192.0.2.1 -all",
        "DMARC": "v=DMARC1; p=reject (at shop.test)",
        "DKIM": "sendgrid can sign with s1._domainkey.shop.test.",
        "alignment": "E-mails by sendgrid pass DMARC by DKIM.",
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("changed", "topic", "said"),
    [
        ({"shop.test": None}, "SPF", "Add a TXT record: v=spf1 include:sendgrid.net ~all"),
        ({"shop.test": "v=spf1 ipv4:192.0.2.1"}, "SPF", "Correct the SPF of shop.test"),
        ({"_dmarc.shop.test": None}, "DMARC", "Add a TXT record at _dmarc.shop.test: v=DMARC1; p=none"),
        ({"_dmarc.shop.test": "v=DMARC1; p=x"}, "DMARC", "Correct the DMARC of shop.test"),
        ({"_dmarc.shop.test": "v=DMARC1; p=none"}, "DMARC", "Set p=quarantine"),
        ({"s1._domainkey.shop.test": None}, "DKIM", "No key is at the selectors s1, s2."),
        ({"s1._domainkey.shop.test": "v=DKIM1; p="}, "DKIM", "No key is at the selectors s1, s2."),
        ({"s1._domainkey.shop.test": None}, "alignment", "E-mails by sendgrid fail DMARC for shop.test"),
    ],
)
def test_a_wrong_record_is_named_with_what_would_be_right(changed, topic, said):
    records = {name: text for name, text in (GOOD | changed).items() if text is not None}
    assert said in read(records)[1][topic]


def test_strict_alignment_refuses_the_signature_of_a_subdomain(settings):
    settings.EMAIL_PROVIDERS = ["mailgun"]
    settings.ANYMAIL = settings.ANYMAIL | {"MAILGUN_SENDER_DOMAIN": "mg.shop.test"}
    records = GOOD | {"mx._domainkey.mg.shop.test": KEY}
    assert read(records)[0]["alignment"] == "E-mails by mailgun pass DMARC by DKIM."
    records |= {"_dmarc.shop.test": "v=DMARC1; p=reject; adkim=s; aspf=s", "mg.shop.test": "v=spf1 -all"}
    assert "mailgun signs as mg.shop.test, which is not shop.test." in read(records)[1]["alignment"]


def test_spf_aligns_where_the_provider_has_a_subdomain_for_bounces(settings):
    settings.EMAIL_PROVIDERS = ["resend"]
    good, wrong = read(GOOD | {"send.shop.test": "v=spf1 include:amazonses.com ~all"})
    assert good["alignment"] == "E-mails by resend pass DMARC by SPF." and "DKIM" in wrong


def test_an_account_may_have_its_own_selector(settings):
    settings.EMAIL_PROVIDERS = ["ses"]
    assert "as --selector" in read(GOOD)[1]["DKIM"]
    assert read(GOOD, "s1")[0]["alignment"] == "E-mails by ses pass DMARC by DKIM."


class TestTheCommand:
    def test_says_that_there_is_no_dns(self, monkeypatch):
        nobody = dns.resolver.Resolver(configure=False)
        nobody.nameservers, nobody.port = [HOST], free_port()
        monkeypatch.setattr(sender_domain, "TIMEOUT_SECONDS", 0.3)
        monkeypatch.setattr(dns.resolver, "Resolver", lambda: nobody)
        with pytest.raises(CommandError, match="This machine has no DNS, so nothing was checked") as refused:
            call_command("providers", "domain")
        assert refused.value.returncode == 1

    def test_says_that_the_extra_is_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "checkdmarc.spf", None)
        with pytest.raises(CommandError, match="Install checkdmarc"):
            call_command("providers", "domain")

    def test_prints_each_finding_and_fails_if_something_must_change(self, monkeypatch, capsys):
        records = GOOD | {"_dmarc.shop.test": "v=DMARC1; p=none"}
        with DnsServer(records) as server, pytest.raises(CommandError, match="Change the DNS as above"):
            real = sender_domain.read_domain
            monkeypatch.setattr(
                "operations.management.commands.providers.read_domain",
                lambda **given: real(resolver=server.resolver, **given),
            )
            call_command("providers", "domain")
        out = capsys.readouterr().out
        assert out.startswith("shop.test (DEFAULT_FROM_EMAIL), sendgrid\n")
        assert "DKIM       ok     sendgrid can sign" in out and "DMARC      change p=none lets" in out
