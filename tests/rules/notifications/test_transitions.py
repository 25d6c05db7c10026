"""The table of transitions says what each verb does to a row in each state, and the docs show the table."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Callable, Iterator

import pytest
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from local.machine import PROJECT
from notifications.changes import age
from notifications.changes.settle import take_back
from notifications.conditions import Rows
from notifications.services import readdress
from notifications.states.transitions import (
    ACCEPT,
    CLAIM,
    DISCARD,
    DUE_STATES,
    ENDED,
    LABELS,
    MARK_SENT,
    READDRESS,
    REASONS,
    RECOVER,
    RESEND,
    SET_ASIDE_OLD,
    SET_ASIDE_REPLACED,
    SET_ASIDE_UNPROVEN,
    SETTLE,
    TAKE_BACK,
    TRANSITIONS,
    UNFINISHED,
    WITHDRAW,
    EndedBy,
    Transition,
)
from tests.kit.mails import as_claimed, make_mail
from tests.kit.words import (
    LEASE_EXPIRED,
    EmailNotification,
    Outcome,
    Status,
    Verdict,
    accept,
    claim,
    manual_actions,
    mark_sent,
    recover,
    set_aside,
    set_aside_replaced,
    settle,
)

rows = EmailNotification.objects
PAGE = PROJECT / "docs/explain/outcomes.md"
#: The columns that every change of state may write.
ALWAYS = {"ended_by", "status", "updated_at"}

Verb = Callable[[EmailNotification], object]


def settling(verdict: Verdict, *, is_own: bool = False) -> Verb:
    outcome = Outcome(verdict, "test", "new", code="500", is_own=is_own)
    return lambda mail: settle([(as_claimed(mail), outcome)])


def hand(act: Transition) -> Verb:
    return lambda mail: manual_actions.change(ids=[mail.id], act=act)


def readdress_empty(mail: EmailNotification) -> None:
    rows.filter(id=mail.id).update(recipient_email="")
    with transaction.atomic():
        if not readdress(order_id=mail.order_id, recipient_email="new@example.com", to_name="New"):
            rows.filter(id=mail.id).update(recipient_email=mail.recipient_email)


#: An acceptance of an unclaimed row is `accept`.
FAILURES = [
    settling(verdict, is_own=is_own)
    for verdict in Verdict
    for is_own in (False, True)
    if verdict is not Verdict.ACCEPTED
]
ACCEPTED = Outcome(Verdict.ACCEPTED, "test", "new")
LONG_AGO = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
#: The calls of each verb.
CALLS: dict[str, list[Verb]] = {
    CLAIM.verb: [lambda _: claim(limit=1)],
    SETTLE.verb: FAILURES,
    TAKE_BACK.verb: [lambda _: take_back(provider="old", since=LONG_AGO, is_same=lambda error: True)],
    RECOVER.verb: [lambda _: recover(lease_seconds=-60)],
    ACCEPT.verb: [lambda mail: accept({mail.id: ACCEPTED})],
    RESEND.verb: [hand(RESEND)],
    READDRESS.verb: [readdress_empty],
    DISCARD.verb: [hand(DISCARD)],
    MARK_SENT.verb: [lambda mail: mark_sent(ids=[mail.id])],
    WITHDRAW.verb: [hand(WITHDRAW)],
}
ASIDE: dict[Transition, list[Verb]] = {
    SET_ASIDE_UNPROVEN: [
        lambda _: set_aside(until=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1), reason="r", limit=1)
    ],
    SET_ASIDE_REPLACED: [lambda mail: set_aside_replaced(ids=[mail.id], reason="r")],
    SET_ASIDE_OLD: [lambda _: age.sweep(after=age.START)],
}


def changes(verb: Verb, status: str, *, retries_left: int) -> tuple[str, set[str]]:
    """Call a verb for a row in a state. Return its state then, and the columns that changed."""
    error = {"at": "2026-01-01T00:00:00+00:00", "outcome": "ambiguous", "code": LEASE_EXPIRED, "text": "busy"}
    mail = make_mail(
        status=status,
        errors=[error],
        last_error="503 busy",
        provider="old",
        provider_message_id="old",
        retry_count=1,
        max_retries=1 + retries_left,
        next_attempt_at=Now() - dt.timedelta(hours=1),
    )
    before = rows.filter(id=mail.id).values().get()
    verb(mail)
    after = rows.filter(id=mail.id).values().get()
    mail.delete()
    return after["status"], {name for name, value in after.items() if value != before.get(name)}


def moved(verbs: list[Verb], status: str) -> Iterator[tuple[str, set[str]]]:
    for verb in verbs:
        for retries_left in (0, 1):
            new, columns = changes(verb, status, retries_left=retries_left)
            if columns:
                yield new, columns


@pytest.mark.django_db
@pytest.mark.parametrize(
    "transition", TRANSITIONS, ids=lambda transition: f"{transition.verb}, {transition.by}"
)
def test_a_verb_changes_rows_in_the_tables_states_and_columns(transition, settings):
    settings.AMBIGUOUS_HOLD_SECONDS = settings.EMAIL_MAX_AGE_HOURS = 0
    verbs = ASIDE.get(transition) or CALLS[transition.verb]
    before, after, columns = set(), set(), set()
    for status in Status:
        own = [settling(Verdict.ACCEPTED)] if transition is SETTLE and status in SETTLE.before else []
        for new, changed in moved([*verbs, *own], status):
            before.add(status)
            after.add(new)
            columns |= changed
    assert before == set(transition.before)
    assert after == set(transition.after)
    assert columns - ALWAYS == set(transition.columns)


def test_each_state_is_shown_and_has_its_count_if_it_is_unfinished():
    assert set(LABELS) == set(Status)
    assert set(UNFINISHED) <= set(Rows._fields) and set(DUE_STATES) <= set(UNFINISHED)
    css = (PROJECT / "web/static/orderpost/admin.css").read_text()
    assert [shown.color for shown in LABELS.values() if f".pill-{shown.color}" not in css] == []


def test_the_sender_leaves_ended_rows_alone():
    assert set(ENDED) == set(Status) - {*CLAIM.before, *SETTLE.before}


def test_the_page_shows_the_table():
    def names(states):
        return ", ".join(f"`{state}`" for state in states)

    lines = [
        f"| {transition.verb} | {transition.by} | {names(transition.before)} | {names(transition.after)} |"
        for transition in TRANSITIONS
    ]
    table = "\n".join(("| verb | by | from | to |", "| --- | --- | --- | --- |", *lines))
    assert f"\n{table}\n\n" in PAGE.read_text(), f"docs/explain/outcomes.md must have this table:\n{table}"


def test_the_page_lists_the_reasons_of_each_state():
    lines = [
        f"| `{status}` | {', '.join(f'`{reason}`' for reason in reasons)} |"
        for status, reasons in REASONS.items()
    ]
    assert "| status | `ended_by` |\n| --- | --- |\n" + "\n".join(lines) + "\n\n" in PAGE.read_text()


@pytest.mark.django_db
@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("reason", ["", *EndedBy])
def test_the_table_refuses_a_reason_that_the_state_cannot_have(status, reason):
    fits = reason in REASONS.get(status, ("",))
    with contextlib.nullcontext() if fits else pytest.raises(IntegrityError), transaction.atomic():
        make_mail(status=status, ended_by=reason)


def test_the_pages_diagram_has_the_claim_its_outcomes_the_old_and_what_a_person_decides():
    drawn = re.findall(r"^    (\w+) --> (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {
        (str(before), str(after))
        for transition in (CLAIM, SETTLE, SET_ASIDE_OLD, RESEND, DISCARD)
        for before in transition.before
        for after in transition.after
    }
