"""Hours of a simulated shop: outages and brown-outs make no dead letter, and poisonous e-mails end as one."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid

import pytest
from django.db import connection

from notifications.changes import whose_failure
from runtime.process.backoff import FULL_JITTER, RetryPolicy
from tests.kit.mails import make_mail
from tests.kit.simulated_shop import HASTY_SCENARIOS, MINUTE, SCENARIOS, Scenario, Shop, brown_out
from tests.kit.words import EmailPolicy, Status, id_floor, new_id, read_database_time

ALL = SCENARIOS | HASTY_SCENARIOS
#: The suite looks at the shops with so many e-mails at most, and `make drills` at all, with more seeds.
FEW = 4000
CASES = [
    pytest.param(
        name,
        seed,
        id=f"{name}-{seed}",
        marks=[] if seed == 1 and scenario.rate * scenario.seconds <= FEW else pytest.mark.drill,
    )
    for name, scenario in ALL.items()
    for seed in range(1, 21 if name in SCENARIOS else 4)
]
#: The most good e-mails that became dead letters with any of twenty seeds. A domain that fails alone looks
#: like e-mails that fail by themselves. In all other shops there is none.
MOST_WRONG = {
    "domain 20% fails 1 h, 5/s": 7,
    "domain 5% fails 1 h, 5/s": 764,
    "hasty: domain 20% fails 1 h, 5/s": 3800,
    "hasty: domain 5% fails 1 h, 5/s": 1000,
}
#: The most minutes until a poisonous e-mail was dead.
MOST_MINUTES = {
    "poison 8 at once, 20/s": 4.6,
    "poison 8 at once, 1/15s": 69,
    "poison 8, noise 10%, 5/s": 105,
    "poison 1, 1/10min": 173,
    "poison 1, 1/h": 624,
    "poison 3 in outage 30 min, 1/2s": 150,
    "listed: poison 8 at once, 1/15s": 164,
    "two: poison 8 at once, 1/15s": 75,
    "two: poison 8, 60% and 5%, 5/s": 24,
    "lost answers: poison 8 at once, 1/15s": 69,
    "slow: poison 8 at once, 20/s": 3.8,
}


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_outages_make_no_dead_letter_and_poisonous_emails_become_one(name, seed):
    shop = Shop(ALL[name], seed=seed).run()
    assert len(shop.dead(poison=False)) <= MOST_WRONG.get(name, 0)
    assert {email.status for email in shop.emails if not email.is_poison} <= {
        Status.SENT,
        Status.DEAD_LETTERED,
    }
    times = [(email.ended_at - email.at) / MINUTE for email in shop.emails if email.is_poison]
    assert max(times, default=0.0) <= MOST_MINUTES.get(name, math.inf)


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_poisonous_email_among_three_a_second_takes_eight_requests_at_most(seed):
    hasty = EmailPolicy(RetryPolicy(1, 3600, jitter=FULL_JITTER), hold_seconds=120)
    shop = Shop(Scenario(3, 5 * MINUTE, 10 * MINUTE, poison=[10.0], policy=hasty), seed=seed).run()
    (poison,) = shop.dead(poison=True)
    assert poison.attempts <= 8


@pytest.mark.django_db
def test_the_simulation_reads_what_the_query_reads(monkeypatch):
    scenario = Scenario(5, 10 * MINUTE, 10 * MINUTE, [brown_out(0.4, 120, 400)] * 2)
    shop = Shop(scenario, seed=1).run()
    now = read_database_time().replace(microsecond=0)
    start = now - dt.timedelta(seconds=scenario.watched)
    monkeypatch.setattr(
        whose_failure, "_READ", whose_failure._READ.replace("statement_timestamp()", f"'{now}'::timestamptz")
    )
    ids = {}
    rows = []
    for number, email in enumerate(shop.emails):
        at = start + dt.timedelta(seconds=email.at)
        ids[email] = id = uuid.UUID(int=id_floor(at).int + number)
        first = f"{at:%Y-%m-%dT%H:%M:%S.%f}".rstrip("0").rstrip(".") + "+00:00"  # as PostgreSQL writes it
        rows.append(
            {
                "id": str(id),
                "sent_at": first if email.accepted_by else None,
                "provider": email.accepted_by,
                "errors": [
                    {"at": first, "provider": name, "outcome": "transient"} for name in email.failed_by
                ],
            }
        )
    template = make_mail(order_id=new_id())
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO email_notifications SELECT (jsonb_populate_record(mail, values"
            " || jsonb_build_object('status', CASE WHEN values ->> 'sent_at' IS NULL"
            " THEN 'failed' ELSE 'sent' END))).*"
            " FROM email_notifications AS mail, jsonb_array_elements(%s::jsonb) AS values WHERE mail.id = %s",
            [json.dumps(rows), template.id],
        )
    for email in shop.emails[:400:20]:
        since = math.floor(email.at) + 1.0
        asked = [
            {
                "id": str(ids[email]),
                "provider": name,
                "since": (start + dt.timedelta(seconds=since)).isoformat(),
            }
            for name in ("p0", "p1")
        ]
        read = {name: counts for _, name, *counts in whose_failure.read_others(asked)}
        assert read == {
            name: [*shop.read_evidence(email, provider=name, since=since, now=scenario.watched)]
            for name in ("p0", "p1")
        }
