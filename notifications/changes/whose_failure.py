"""Whose failures were they? Ask the table how a provider treated other e-mails since this one failed first.

An e-mail without a retry left is tried on until others show that its failures are its own: a good e-mail
would practically never have failed so often at that provider. So neither an outage nor a brown-out makes a
dead letter, and no process has to remember anything.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from django.db import DEFAULT_DB_ALIAS, connections

from notifications.states.claimed import Claimed
from notifications.states.errors import counted_failures
from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import Status

#: A good e-mail may become a dead letter once in so many.
RARE = 1e-8
#: A provider that accepted fewer others says nothing.
ENOUGH_ACCEPTED = 6
#: The time since the first failure is read in so many slices, and in each so many e-mails at most. A busy
#: shop's brown-out is part of them however long ago it was.
SLICES, SLICE_ROWS = 100, 20
#: What shows that a provider failed a first attempt. Its other refusals are about the e-mail or the sender.
_FAILED = ", ".join(
    f"'{verdict.value}'"
    for verdict in (Verdict.TRANSIENT, Verdict.AMBIGUOUS, Verdict.UNREACHABLE, Verdict.MISCONFIGURED)
)
# Only e-mails that were written since then: their ids have the time, so the primary key finds them, and all
# their first attempts came later. An entry and the acceptance by the next provider in the same attempt have
# the same time.
_READ = f"""
    WITH asked AS (
        SELECT * FROM jsonb_to_recordset(%(asked)s::jsonb) AS asked
            (id uuid, provider text, since timestamptz, until timestamptz)
    ), times AS (
        SELECT id, provider, slice,
            since + (coalesce(until, statement_timestamp()) - since) * slice / {SLICES} AS at
        FROM asked, generate_series(0, {SLICES}) AS slice
    ), slices AS (
        SELECT id, provider, slice, (lpad(to_hex(floor(1000 * greatest(0, extract(epoch FROM at)))::bigint),
            12, '0') || repeat('0', 20))::uuid AS low
        FROM times
    ), bounds AS MATERIALIZED (
        SELECT *, lead(low) OVER (PARTITION BY id, provider ORDER BY slice) AS high FROM slices
    )
    SELECT bounds.id, bounds.provider, count(*) FILTER (WHERE other.accepted_by = bounds.provider),
        count(*) FILTER (WHERE EXISTS (
            SELECT FROM jsonb_array_elements(other.errors) AS entry
            WHERE entry ->> 'provider' = bounds.provider AND entry ->> 'at' = other.errors -> 0 ->> 'at'
                AND entry ->> 'outcome' IN ({_FAILED})))
    FROM bounds CROSS JOIN LATERAL (
        SELECT row.errors, CASE WHEN row.status = '{Status.SENT.value}' AND row.resent_at IS NULL AND (
                row.errors = '[]' OR row.errors -> 0 ->> 'at' = to_jsonb(row.sent_at) #>> '{{}}')
            THEN row.provider END AS accepted_by
        FROM email_notifications AS row
        WHERE row.id >= bounds.low AND row.id < bounds.high AND row.id <> bounds.id
        ORDER BY row.id LIMIT {SLICE_ROWS}
    ) AS other
    GROUP BY bounds.id, bounds.provider
    """  # noqa: S608 - only constants are inserted


class FailureEvidence(NamedTuple):
    """A provider's failures of an e-mail, and its treatment of the first attempts of others since then."""

    failures: int
    accepted: int
    failed: int


def are_own(evidence: Iterable[FailureEvidence]) -> bool:
    """Return whether an e-mail's failures at all providers are its own.

    Say how often a good e-mail would fail so often: the provider's share of failures, to the power of the
    e-mail's own ones. The chances of all providers that accepted enough others are multiplied.

    >>> are_own([FailureEvidence(failures=4, accepted=98, failed=0)])
    False
    >>> are_own([FailureEvidence(failures=4, accepted=99, failed=0)])
    True
    >>> are_own([FailureEvidence(failures=100, accepted=5, failed=0)])
    False
    """
    chance = 1.0
    for failures, accepted, failed in evidence:
        if accepted >= ENOUGH_ACCEPTED:
            chance *= ((failed + 1) / (accepted + failed + 2)) ** failures
    return chance < RARE


def say_whose(ended: Iterable[tuple[Claimed, Outcome]]) -> list[tuple[Claimed, Outcome]]:
    """Return outcomes of attempts, and those as `is_own` after which an e-mail must not be tried any more."""
    pairs = [*ended]
    asked = {
        email: outcome
        for email, outcome in pairs
        if outcome.needs_answer(retry_count=email.retry_count, max_retries=email.max_retries)
    }
    own = find_own((email, outcome.failures) for email, outcome in asked.items())
    return [
        (email, dataclasses.replace(outcome, is_own=True) if email in asked and email.id in own else outcome)
        for email, outcome in pairs
    ]


def find_own(asked: Iterable[tuple[Claimed, Iterable[Outcome]]]) -> set[uuid.UUID]:
    """Return the ids of those e-mails whose failures since the last resend are their own, in one statement.

    Each comes with the failures of an attempt that are not written yet. Without any, what happened after the
    last failure does not count: a hold may end after the outage, which would seem to have been a small one.
    """
    failures: dict[tuple[uuid.UUID, str], int] = {}
    values = []
    for email, latest in asked:
        new = Counter(failure.provider for failure in latest if failure.counts)
        counted = counted_failures(email.errors, email.resent_at)
        until = None if new else max(itertools.chain(*counted.values()), default=None)
        for provider, times in counted.items():
            failures[email.id, provider] = len(times) + new[provider]
            value = {"id": str(email.id), "provider": provider, "since": min(times).isoformat()}
            values.append(value | ({"until": until.isoformat()} if until else {}))
    if not values:
        return set()
    evidence: defaultdict[uuid.UUID, list[FailureEvidence]] = defaultdict(list)
    for id, provider, accepted, failed in read_others(values):
        evidence[id].append(FailureEvidence(failures[id, provider], accepted, failed))
    return {id for id, parts in evidence.items() if are_own(parts)}


def read_others(asked: Sequence[Mapping[str, str]]) -> list[tuple[uuid.UUID, str, int, int]]:
    """Return how many first attempts of others a provider accepted and failed since an e-mail failed there.

    Each value asked for has the `id`, the `provider`, `since` and perhaps `until`. Those without others are
    left out.
    """
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(_READ, {"asked": json.dumps(asked)})
        return [*cursor.fetchall()]
