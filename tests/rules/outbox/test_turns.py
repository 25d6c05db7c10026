"""One order's e-mails leave in the order of its changes, and overtaken ones not at all."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from notifications.changes import turns
from notifications.content.copies import copy_email
from notifications.services import withdraw_emails
from outbox.screen import screen
from tests.kit.mails import as_claimed, claim_one, drained, due_now, make_mail, sandbox, settled, statuses
from tests.kit.months import fill, last_month
from tests.kit.plans import Plan, plan_of
from tests.kit.races import wait_until_somebody_waits
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    Capacity,
    Drain,
    EmailNotification,
    Outcome,
    Verdict,
    accept,
    claim,
    claim_untried,
    give_up,
    id_floor,
    new_id,
    partitions,
    read_database_time,
    resend,
    settle,
)

__all__ = ["sandbox"]
pytestmark = pytest.mark.django_db(transaction=True)
ORDER = new_id()
HOUR = dt.timedelta(hours=1)
#: As `decide_status` leaves them: the e-mail's own failure perhaps, or certainly the provider's.
OWN = {"provider": "sendgrid", "outcome": "transient", "counts": True, "text": "500", "code": "500"}
AMBIGUOUS = {
    "provider": "sendgrid",
    "outcome": "ambiguous",
    "counts": True,
    "text": "",
    "code": "ReadTimeout",
}
OUTAGE = {"provider": "sendgrid", "outcome": "unreachable", "text": "refused", "code": "refused"}


def mail_of(version: int | None, event_type: str = "order.paid", **fields) -> EmailNotification:
    """Insert a due e-mail of the one order, in the state after its change to `version`."""
    values = {"order_id": ORDER, "event_type": event_type, "order_version": version, "subject": str(version)}
    return make_mail(**values | fields)


def failed_at(*entries: tuple[float, dict]) -> list[dict]:
    """Return errors that happened so many minutes ago."""
    now = read_database_time()
    return [entry | {"at": (now - dt.timedelta(minutes=minutes)).isoformat()} for minutes, entry in entries]


def screened() -> dict[str, Outcome]:
    """Claim what is due, and return the outcomes of the e-mails that are not sent, by their subjects."""
    batch = claim(limit=10)
    subjects = {email.id: email.subject for email in batch}
    outcomes = screen(batch)
    return {subjects[id]: outcome for id, outcome in outcomes.items()}


def wait_of(email: EmailNotification) -> float:
    """Return the seconds until the e-mail is due."""
    email.refresh_from_db()
    return (email.next_attempt_at - read_database_time()).total_seconds()


def later_of(**fields) -> Outcome | None:
    """Return the outcome of a due confirmation after a payment's e-mail with these fields, None if sent."""
    mail_of(1, **{"next_attempt_at": Now() + HOUR} | fields)
    mail_of(2, "order.confirmed")
    return screened().get("2")


def test_emails_leave_in_the_order_of_the_changes_though_the_first_was_tried_last(sandbox):
    first = mail_of(1, errors=failed_at((1, OUTAGE)), next_attempt_at=Now() + HOUR)
    second = mail_of(2, "order.confirmed")
    third = mail_of(3, "order.part_refunded")
    assert drained() == {"pending": 3}
    assert not sandbox.mails
    assert 50 < wait_of(second) <= 60
    assert 50 < wait_of(third) <= 60
    EmailNotification.objects.filter(id=first.id).update(next_attempt_at=Now())
    assert drained() == {"sent": 3}  # the end of each makes the next one due
    assert [mail.subject for mail in sandbox.mails] == ["1", "2", "3"]


def test_emails_that_are_claimed_together_leave_one_after_the_other(sandbox):
    for version in (3, 1, 2):
        mail_of(version)
    assert drained() == {"sent": 3}
    assert [mail.subject for mail in sandbox.mails] == ["1", "2", "3"]


def test_a_pending_first_one_goes_first_however_long_it_takes():
    errors = failed_at((5000, OWN), (4000, OUTAGE))
    assert later_of(errors=errors).waits_for


@pytest.mark.parametrize("entry", [OWN, AMBIGUOUS])
@pytest.mark.parametrize("status", ["failed", "processing"])
def test_one_that_fails_by_itself_holds_up_the_next_for_fifteen_minutes(entry, status):
    assert later_of(status=status, errors=failed_at((14, entry))).wait_seconds == pytest.approx(60, abs=2)
    EmailNotification.objects.all().delete()
    assert later_of(status=status, errors=failed_at((14.9, entry))).wait_seconds == pytest.approx(6, abs=2)
    EmailNotification.objects.all().delete()
    assert later_of(status=status, errors=failed_at((15.1, entry))) is None


def test_the_patience_begins_after_the_last_outage():
    errors = failed_at((90, OWN), (60, OUTAGE), (14, OWN), (2, OWN))
    assert later_of(status="failed", errors=errors).waits_for
    EmailNotification.objects.all().delete()
    errors = failed_at((90, OWN), (60, OUTAGE), (16, OWN), (2, OWN))
    assert later_of(status="failed", errors=errors) is None


def test_an_attempt_that_one_provider_may_have_taken_is_no_outage():
    errors = failed_at((20, OUTAGE), (10, OUTAGE))
    errors += [OWN | {"at": errors[-1]["at"]}]  # the second provider of the same attempt
    assert turns.failing_since(errors) == dt.datetime.fromisoformat(errors[-1]["at"])


def test_a_held_first_one_holds_up_the_next_that_is_due():
    first = mail_of(1)
    settled(claim_one(), Verdict.AMBIGUOUS)
    mail_of(2, "order.confirmed")
    assert screened()["2"].waits_for == (first.id,)


@pytest.mark.parametrize("status", ["sent", "dead_lettered", "suppressed", "discarded"])
def test_one_that_has_ended_holds_up_none(status):
    assert later_of(status=status) is None


def test_a_resent_one_holds_up_none_and_waits_for_none():
    assert later_of(resent_at=Now()) is None
    EmailNotification.objects.all().delete()
    mail_of(1, next_attempt_at=Now() + HOUR)
    mail_of(2, "order.confirmed", resent_at=Now())
    assert screened() == {}


def test_a_dead_first_one_that_is_resent_leaves_after_the_second(sandbox):
    first = mail_of(1, status="dead_lettered")
    mail_of(2, "order.cancelled")
    assert drained() == {"dead_lettered": 1, "sent": 1}
    resend(ids=[first.id])
    assert drained() == {"sent": 2}  # a person wants it: it is not overtaken


def test_copies_hold_up_none_and_wait_for_none():
    first = mail_of(1, status="dead_lettered")
    with transaction.atomic():
        copy = copy_email(id=first.id, recipient_email="other@example.com")
    EmailNotification.objects.filter(id=copy).update(next_attempt_at=Now() + HOUR)
    mail_of(2, "order.confirmed")
    assert screened() == {}
    EmailNotification.objects.all().delete()
    mail_of(1, next_attempt_at=Now() + HOUR)
    mail_of(None, "order.confirmed")
    assert screened() == {}


def test_shop_copies_wait_only_for_shop_copies():
    customers = mail_of(1)
    mail_of(1, shop_copy_of=customers.id, next_attempt_at=Now() + HOUR)
    mail_of(2, "order.confirmed", shop_copy_of=new_id(), subject="copy")
    EmailNotification.objects.filter(id=customers.id).update(status="sent", sent_at=Now())
    mail_of(2, "order.confirmed", subject="customer's")
    assert {*screened()} == {"copy"}


def test_a_pending_one_holds_up_the_next_although_one_between_them_fails_for_long():
    first = mail_of(1, next_attempt_at=Now() + HOUR)
    mail_of(2, "order.confirmed", status="failed", errors=failed_at((20, OWN)), next_attempt_at=Now() + HOUR)
    mail_of(3, "order.part_refunded")
    assert screened()["3"].waits_for == (first.id,)


def test_one_waits_for_a_pending_one_alone_and_not_for_one_that_it_overtakes():
    mail_of(1, "order.confirmed", next_attempt_at=Now() + HOUR)
    second = mail_of(2, "order.part_refunded", next_attempt_at=Now() + HOUR)
    mail_of(3, "order.cancelled")
    assert screened()["3"].waits_for == (second.id,)


def test_a_pending_one_that_was_resent_or_is_a_shop_copy_holds_up_nobody():
    mail_of(1, next_attempt_at=Now() + HOUR, resent_at=Now())
    mail_of(2, next_attempt_at=Now() + HOUR, shop_copy_of=new_id())
    mail_of(3, "order.part_refunded")
    assert screened() == {}


@pytest.mark.parametrize("count", [turns.MOST_EARLIER - 1, turns.MOST_EARLIER])
def test_one_behind_a_hundred_that_fail_waits_whatever_they_are(count):
    """They failed for so long that none of them holds up the next, but there may be others before them."""
    for version in range(1, count + 1):
        mail_of(version, status="failed", errors=failed_at((20, OWN)), next_attempt_at=Now() + HOUR)
    row = mail_of(count + 1, "order.part_refunded")
    (email,) = claim(limit=1)
    outcome = screen([email]).get(email.id)
    if count < turns.MOST_EARLIER:
        assert outcome is None
    else:
        settle([(email, outcome)])
        assert 50 < wait_of(row) <= 60


def test_equal_versions_and_other_orders_do_not_wait():
    mail_of(2, next_attempt_at=Now() + HOUR)
    mail_of(2, "order.confirmed")  # a source may repeat a sequence
    mail_of(1, order_id=new_id(), next_attempt_at=Now() + HOUR)
    mail_of(2, order_id=new_id())
    assert screened() == {}


OVERTAKING = [
    ("order.payment_failed", {"order.paid", "order.cancelled"}),
    ("order.paid", {"order.cancelled", "order.refunded"}),
    ("order.confirmed", {"order.completed", "order.cancelled", "order.refunded"}),
    ("order.placed", set()),
    ("order.completed", set()),
    ("order.cancelled", set()),
    ("order.part_refunded", set()),
    ("order.refunded", set()),
]


@pytest.mark.parametrize(("event", "overtaking"), OVERTAKING)
def test_a_later_change_overtakes_some_emails(event, overtaking):
    by = {}
    for other, _ in OVERTAKING:
        mail_of(1, event)
        mail_of(2, other, status="sent")
        for outcome in screened().values():
            by[other] = outcome.text
        EmailNotification.objects.all().delete()
    assert by == {other: f"overtaken by {other}" for other in overtaking}


def test_an_overtaken_email_is_discarded_with_its_reason_and_does_not_hold_up_the_overtaking_one(sandbox):
    paid = mail_of(1, errors=failed_at((1, OUTAGE)), next_attempt_at=Now() + HOUR)
    mail_of(2, "order.cancelled")
    assert drained() == {"pending": 1, "sent": 1}
    due_now()
    assert drained() == {"discarded": 1, "sent": 1}
    paid.refresh_from_db()
    assert paid.last_error == "overtaken by order.cancelled"
    assert len(paid.errors) == 1
    assert [mail.subject for mail in sandbox.mails] == ["2"]
    resend(ids=[paid.id])  # a person may send it after all
    assert drained() == {"sent": 2}


def test_an_email_of_a_later_sequence_that_came_first_overtakes(sandbox):
    mail_of(7, "order.cancelled")
    drained()
    mail_of(3)
    assert drained() == {"sent": 1, "discarded": 1}


def test_one_that_may_have_been_accepted_is_not_overtaken_while_it_is_held():
    paid = mail_of(1)
    settled(claim_one(), Verdict.AMBIGUOUS)
    mail_of(2, "order.cancelled", status="sent")
    due_now()
    assert screened()["1"].verdict is Verdict.HELD
    assert paid.status == "pending"


def test_the_overtaking_email_waits_for_one_that_may_have_been_accepted():
    mail_of(1, status="failed", errors=failed_at((1, AMBIGUOUS)), next_attempt_at=Now() + HOUR)
    mail_of(2, "order.cancelled")
    assert screened()["2"].waits_for


def test_a_later_change_without_an_email_to_send_does_not_overtake():
    mail_of(1)
    mail_of(2, "order.cancelled", status="dead_lettered", recipient_email="", last_error="no usable address")
    assert screened() == {}


def test_a_copy_of_a_later_email_does_not_overtake():
    mail_of(1)
    mail_of(None, "order.cancelled", status="sent", resend_of=new_id())
    assert screened() == {}


def end_by_webhook(email: EmailNotification) -> None:
    accept({email.id: Outcome(Verdict.ACCEPTED, "sendgrid", "m")})


def end_by_person(email: EmailNotification) -> None:
    assert give_up(ids=[email.id])[0]


def end_by_resend(email: EmailNotification) -> None:
    assert resend(ids=[email.id])[0]


def end_by_erasure(email: EmailNotification) -> None:
    with transaction.atomic():
        withdraw_emails(ids=[email.id])


@pytest.mark.parametrize("end", [end_by_webhook, end_by_person, end_by_resend, end_by_erasure])
def test_whoever_ends_the_first_one_makes_the_next_one_due(end):
    first = mail_of(1, status="failed", errors=failed_at((1, OWN)), next_attempt_at=Now() + HOUR)
    second, unrelated = (
        mail_of(2, "order.confirmed"),
        mail_of(1, order_id=new_id(), next_attempt_at=Now() + HOUR),
    )
    own_wait = mail_of(3, "order.part_refunded", next_attempt_at=Now() + HOUR)
    assert drained() == {"failed": 1, "pending": 3}
    assert wait_of(second) > 50
    end(first)
    assert wait_of(second) <= 0
    assert wait_of(unrelated) > 3000
    assert wait_of(own_wait) > 3000


def test_a_failure_wakes_nobody():
    mail_of(1)
    email = claim_one()
    second = mail_of(2, "order.confirmed")
    settle([(claimed, outcome_of(claimed)) for claimed in claim(limit=1)])
    settled(email, Verdict.TRANSIENT)
    assert wait_of(second) > 50


def outcome_of(email) -> Outcome:
    return screen([email])[email.id]


def test_one_that_waits_looks_again_under_the_locks_before_it_waits():
    """The first one is sent between the screening of the second and its give-back."""
    mail_of(1)
    first = claim_one()
    mail_of(2, "order.confirmed")
    second = claim_one()
    outcome = outcome_of(second)
    settled(first, Verdict.ACCEPTED)
    (change,) = settle([(second, outcome)])
    assert (change.status, change.wait_seconds) == ("pending", 0.0)


@pytest.mark.parametrize("first_commits_last", [True, False])
def test_no_wake_up_is_lost_between_two_settlements(first_commits_last):
    """Each settlement in turn is held before its commit, while the other one waits for its locks."""
    mail_of(1)
    first = claim_one()
    row = mail_of(2, "order.confirmed")
    second = claim_one()
    pairs = [[(first, Outcome(Verdict.ACCEPTED, "test", "m"))], [(second, outcome_of(second))]]
    held, waits = reversed(pairs) if first_commits_last else pairs
    has_settled, may_commit = threading.Event(), threading.Event()

    def settle_and_hold() -> None:
        with transaction.atomic():
            settle(held)
            has_settled.set()
            assert may_commit.wait(PATIENCE)
        connections.close_all()

    def settle_next() -> None:
        settle(waits)
        connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(settle_and_hold)
        assert has_settled.wait(PATIENCE)
        waiting = pool.submit(settle_next)
        wait_until_somebody_waits()
        may_commit.set()
        holding.result(PATIENCE)
        waiting.result(PATIENCE)
    assert wait_of(row) <= 0
    assert statuses() == {"sent": 1, "pending": 1}


def test_a_claim_in_flight_while_the_overtaking_change_commits_is_sent_and_the_next_waits_for_it(sandbox):
    mail_of(1)
    first = claim_one()
    assert screen([first]) == {}
    mail_of(2, "order.cancelled")
    assert drained() == {"processing": 1, "pending": 1}
    settled(first, Verdict.ACCEPTED)
    assert drained() == {"sent": 2}


def test_a_probe_sends_the_first_of_its_order_in_place_of_one_that_waits():
    """All untried e-mails wait for tried ones of their orders, which are not due yet."""
    for number in range(30):
        order = new_id()
        errors = failed_at((1, OUTAGE))
        mail_of(1, order_id=order, errors=errors, next_attempt_at=Now() + HOUR, subject=f"first {number}")
        mail_of(2, "order.confirmed", order_id=order, subject=f"second {number}")
    sent = []

    def send(email) -> Outcome:
        sent.append((email.subject, email.is_substitute))
        return Outcome(Verdict.UNREACHABLE, "sendgrid", is_probe=True)

    probes = iter([Capacity(1, is_untried_first=True, is_retry_allowed=False)])
    rest = Capacity(0, 5.0)
    Drain(send=send, capacity=lambda: next(probes, rest)).run(seconds=10)
    assert sent == [("first 29", True)]
    probes = iter([Capacity(1, is_untried_first=True, is_retry_allowed=False)])
    Drain(send=send, capacity=lambda: next(probes, rest)).run(seconds=10)
    assert sent[1:] == [("first 28", True)]  # the one that failed does not test the provider again at once


def test_a_probe_is_an_untried_email_alone_if_its_order_has_no_earlier_one():
    mail_of(1)
    (email,) = claim_untried()
    assert not email.is_substitute


def test_screening_reads_once_more_and_settling_no_more():
    for _ in range(5):
        mail_of(1, order_id=new_id())
    batch = claim(limit=5)
    with CaptureQueriesContext(connection) as captured:
        screen(batch)
    assert len(captured) == 2  # suppressions and turns
    with CaptureQueriesContext(connection) as captured:
        settle([(email, Outcome(Verdict.ACCEPTED, "test", "m")) for email in batch])
    assert len(captured) == 4


def plans_of(work, *, mark: str) -> list[Plan]:
    """Do some work, and return the plans of its statements with `mark`, which are run again."""
    with CaptureQueriesContext(connection) as captured:
        work()
    return [plan_of(query["sql"]) for query in captured if mark in query["sql"]]


def test_the_other_emails_of_an_order_are_found_by_its_index_in_two_months(filled):
    """Among 30,000 others. The first e-mail of each order is of last month."""
    orders = [new_id() for _ in range(20)]
    for number, order in enumerate(orders):
        old = last_month(hours=1, milliseconds=number)
        mail_of(1, order_id=order, id=id_floor(old), created_at=old, next_attempt_at=Now() + HOUR)
        mail_of(2, "order.confirmed", order_id=order)
    batch = [email for email in claim(limit=20, fresh=20, lookback_seconds=5) if email.order_version]
    assert len(batch) == 20
    (plan,) = plans_of(lambda: turns.find_out_of_turn(batch), mark="jsonb_to_recordset")
    assert all(index.endswith("_order_id_order_version_idx") for index in plan.indexes), plan.indexes
    assert plan.visited <= 2 * len(batch) + 40


def test_one_orders_many_emails_are_looked_up_and_not_read(filled):
    """Ten thousand pending e-mails behind the order's first one, which has failed.

    In a shop's first month, whose last month's table is empty, PostgreSQL would read and sort all of them.
    """
    order = new_id()
    fill(partitions.partition_at(model=EmailNotification, when=read_database_time(), steps=-1), 1000)
    EmailNotification.objects.filter(status="pending").update(order_id=order, event_type="order.shipped")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE email_notifications AS row SET order_version = place FROM ("
            "SELECT id, 1 + row_number() OVER (ORDER BY id) AS place FROM email_notifications"
            " WHERE status = 'pending') AS numbered WHERE row.id = numbered.id"
        )
        cursor.execute("ANALYZE email_notifications")
    mail_of(1, order_id=order, status="failed", errors=failed_at((1, OUTAGE)), next_attempt_at=Now() + HOUR)
    batch = claim(limit=100, fresh=25)
    assert len(batch) == 100
    outcomes = {}
    (plan,) = plans_of(lambda: outcomes.update(turns.find_out_of_turn(batch)), mark="jsonb_to_recordset")
    assert len(outcomes) == 100
    assert all(index.endswith("_order_id_order_version_idx") for index in plan.indexes), plan.indexes
    assert plan.visited <= 100 * 101  # the claimed ones before each are being sent
    row = mail_of(20_000, "order.shipped", order_id=order)
    (plan,) = plans_of(lambda: turns.find_out_of_turn([as_claimed(row)]), mark="jsonb_to_recordset")
    assert plan.visited <= 100 and plan.buffers <= 200


def test_no_claim_walks_over_emails_that_wait(filled):
    EmailNotification.objects.filter(status="pending").update(
        order_version=2, next_attempt_at=Now() + dt.timedelta(seconds=30)
    )
    due = mail_of(1, order_id=new_id())
    (plan,) = plans_of(lambda: claim(limit=100, fresh=25), mark="UPDATE")
    assert plan.visited <= 10
    assert EmailNotification.objects.get(status="processing").id == due.id
