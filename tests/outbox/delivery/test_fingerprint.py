"""Errors of one cause have one fingerprint, and errors of two causes have two."""

from __future__ import annotations

import time

import pytest

from outbox.delivery.rows.fingerprint import fingerprint_of, normalise

ONE_CAUSE = [
    (
        "550 5.1.1 <ann@example.com>: Recipient address rejected: User unknown",
        "550 5.1.1 <bob.smith+7@mail.example.org>: Recipient address rejected: User unknown",
    ),
    (
        "552 5.2.2 Mailbox full a12-20020a170902b09200b001d8d0f7 - gsmtp",
        "552 5.2.2 Mailbox full q9-30020a170902c18400b003a7c1e2 - gsmtp",
    ),
    (
        "ReadTimeout Pool(host='api.sendgrid.com', port=443): Read timed out. (read timeout=10)",
        "ReadTimeout Pool(host='api.eu.sendgrid.com', port=80): Read timed out. (read timeout=9)",
    ),
    (
        "554 5.7.1 Service unavailable; Client host [192.0.2.10] blocked using zen.spamhaus.org",
        "554 5.7.1 Service unavailable; Client host [198.51.100.7] blocked using zen.spamhaus.org",
    ),
    (
        "429 daily_quota_exceeded: 200 of 200 sent, again at 2026-11-22T00:00:00Z",
        "429 daily_quota_exceeded: 100 of 100 sent, again at 2026-11-23 07:30",
    ),
    (
        "Timeout request 0191c0de-0000-7000-8000-000000000001 took 10.2 s",
        "Timeout request 0191c0de-0000-7000-8000-00000000abcd took 11 s",
    ),
]
TWO_CAUSES = [
    ("550 5.1.1 no", "550 5.7.1 no"),
    ("550 no", "554 no"),
    ("422 406: inactive recipient", "422 300: invalid e-mail request"),
    ("400 Does not contain a valid address.", "400 The subject is required."),
]


@pytest.mark.parametrize(("one", "other"), ONE_CAUSE)
def test_numbers_ids_addresses_and_times_make_no_difference(one, other):
    assert fingerprint_of(provider="smtp", error=one) == fingerprint_of(provider="smtp", error=other)


@pytest.mark.parametrize(("one", "other"), TWO_CAUSES)
def test_another_code_or_another_text_makes_one(one, other):
    assert fingerprint_of(provider="smtp", error=one) != fingerprint_of(provider="smtp", error=other)


def test_another_provider_makes_one():
    assert fingerprint_of(provider="ses", error="no") != fingerprint_of(provider="smtp", error="no")


def test_no_address_is_left_in_the_normalised_text():
    assert normalise("550 5.1.1 no user ann@example.com (192.0.2.1)") == "550 5.1.1 no user <address> (<ip>)"


@pytest.mark.parametrize("character", ["a", "1", "a1", "-", ".", "a.", "@", ":", "1:", "f:", "[", "é"])
def test_a_hostile_text_takes_no_long_time(character):
    started = time.process_time()
    normalise(character * 1000)
    assert time.process_time() - started < 1.0
