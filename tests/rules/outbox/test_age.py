"""An e-mail that could not be sent for three days is left to a person."""

from __future__ import annotations

import datetime as dt
import html
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now, Random

from notifications.changes import age
from notifications.changes.settle import take_back
from notifications.conditions import UNFINISHED_EMAILS
from notifications.events import TOPICS
from notifications.failure_causes import cause_of_row
from notifications.log import EmailChange
from notifications.providers.causes import explain_email
from notifications.providers.explanations import TOO_OLD
from notifications.services import readdress, resend_dead_letters
from notifications.states.transitions import NO_ADDRESS
from operations.after_restore import reconcile
from operations.status import read_status
from outbox.screen import screen
from retention.purge import purge
from runtime.audit import Actor
from runtime.charts.duration_histogram import quantile
from runtime.charts.sums import Sums, Window, read_window
from runtime.conditions import read_facts
from runtime.tasks import run_bulk_jobs
from tests.kit import months
from tests.kit.mails import (
    claim_one,
    drained,
    due_now,
    make_mail,
    make_mails,
    sandbox,
    settled,
    statuses,
)
from tests.kit.plans import plan_of, statements
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    RESEND,
    BulkJob,
    DomainEvent,
    EmailNotification,
    Heartbeat,
    Status,
    Verdict,
    claim,
    dead_causes,
    drain,
    give_up,
    metrics,
    new_id,
    pauses,
    read_database_time,
    resend,
    start_job,
)

__all__ = ["sandbox"]
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
MINUTE, HOUR, DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)


def let_pass(time: dt.timedelta) -> None:
    """Move everything that is stored into the past."""
    for column in (
        "created_at",
        "updated_at",
        "next_attempt_at",
        "resent_at",
        "readdressed_at",
        "claimed_at",
    ):
        EmailNotification.objects.update(**{column: F(column) - time})
    Heartbeat.objects.update(beat_at=F("beat_at") - time)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE email_notifications SET errors = (
                SELECT jsonb_agg(entry || jsonb_build_object(
                    'at', (entry->>'at')::timestamptz - make_interval(secs => %s)))
                FROM jsonb_array_elements(errors) AS entry)
            WHERE errors <> '[]'
            """,
            [time.total_seconds()],
        )


@pytest.fixture(autouse=True)
def _any_times():
    with months.any_times():
        yield


def swept() -> dict[str, int]:
    """Sweep all, and return the number of e-mails in each status."""
    age.sweep(after=age.START)
    return statuses()


def tried(mail: EmailNotification, **outcome) -> None:
    """Record an attempt at the e-mail, which alone is due."""
    settled(claim_one(), **{"provider": "sendgrid", "verdict": Verdict.MISCONFIGURED} | outcome)
    mail.refresh_from_db()


def error_of(mail: EmailNotification) -> str:
    mail.refresh_from_db()
    return mail.last_error


def test_it_is_a_dead_letter_after_three_days_that_says_what_it_waited_for():
    refused = make_mail()
    tried(refused, code="401", text="Unauthorized")
    untried = make_mail()
    let_pass(3 * DAY - MINUTE)
    assert swept() == {"pending": 2}
    let_pass(MINUTE)
    assert swept() == {"dead_lettered": 2}
    assert error_of(untried) == "too old: it waited 3 days for a provider"
    assert error_of(refused) == "too old: it waited 3 days for sendgrid (401 Unauthorized)"
    assert refused.retry_count == 0 and len(refused.errors) == 1


@pytest.mark.parametrize(("hours", "words"), [(1, "1 hour"), (30, "30 hours"), (49, "2 days")])
def test_the_setting_says_for_how_long_an_email_may_wait(hours, words, settings):
    settings.EMAIL_MAX_AGE_HOURS = hours
    mail = make_mail()
    let_pass(hours * HOUR - MINUTE)
    assert swept() == {"pending": 1}
    let_pass(MINUTE)
    assert swept() == {"dead_lettered": 1}
    assert f"it waited {words} for" in error_of(mail)


def test_a_drain_that_runs_before_any_sweep_sends_no_old_email(sandbox):
    old = make_mail()
    let_pass(10 * DAY)
    make_mail()
    assert drained() == {"dead_lettered": 1, "sent": 1}
    assert error_of(old) == "too old: it waited 10 days for a provider"


def test_the_poll_sweeps_before_it_drains(sandbox):
    make_mail()
    let_pass(10 * DAY)
    make_mail()
    claims = []
    drain.current().screen = lambda emails: claims.extend(emails) or screen(emails)
    drain.poll()
    assert statuses() == {"dead_lettered": 1, "sent": 1} and len(claims) == 1


def test_a_resend_by_a_person_starts_the_age_anew(sandbox):
    mail = make_mail()
    let_pass(10 * DAY)
    assert swept() == {"dead_lettered": 1}
    resend(ids=[mail.id])
    let_pass(3 * DAY - MINUTE)
    assert swept() == {"pending": 1}
    assert drained() == {"sent": 1}


def test_it_is_left_alone_while_it_is_held_and_swept_afterwards():
    mail = make_mail()
    let_pass(3 * DAY)
    tried(mail, verdict=Verdict.AMBIGUOUS, code="ReadTimeout", text="no answer")
    assert swept() == {"failed": 1}
    let_pass(3 * MINUTE)
    assert swept() == {"dead_lettered": 1}


def test_a_claimed_email_is_left_to_its_drain():
    make_mail()
    let_pass(10 * DAY)
    claim_one()
    assert swept() == {"processing": 1}


def test_the_time_of_a_pause_does_not_count():
    make_mail()
    pauses.pause(parts=["delivery"], reason="a test", by=Actor(""))
    let_pass(4 * DAY)
    assert swept() == {"pending": 1}
    pauses.resume(parts=["delivery"], by=Actor(""))
    assert swept() == {"pending": 1}
    let_pass(3 * DAY - MINUTE)
    assert swept() == {"pending": 1}
    let_pass(MINUTE)
    assert swept() == {"dead_lettered": 1}


def test_a_drain_counts_from_the_end_of_a_pause_too(sandbox):
    make_mail()
    pauses.pause(parts=["delivery"], reason="a test", by=Actor(""))
    let_pass(4 * DAY)
    pauses.resume(parts=["delivery"], by=Actor(""))
    assert drained() == {"sent": 1}


def test_the_end_of_a_pause_of_another_part_changes_no_age():
    make_mail()
    pauses.pause(parts=["relay"], reason="a test", by=Actor(""))
    let_pass(4 * DAY)
    pauses.resume(parts=["relay"], by=Actor(""))
    assert swept() == {"dead_lettered": 1}


def test_the_end_of_a_pause_is_kept_for_longer_than_other_heartbeats(settings):
    settings.EMAIL_MAX_AGE_HOURS = 24 * 30
    pauses.pause(parts=["delivery"], reason="a test", by=Actor(""))
    pauses.resume(parts=["delivery"], by=Actor(""))
    Heartbeat.beat(name="relay@1")
    let_pass(20 * DAY)
    for rule in Heartbeat.purge_rules:
        purge(table=Heartbeat._meta.db_table, rule=rule)
    assert [*Heartbeat.objects.values_list("name", flat=True)] == [Heartbeat.DELIVERY_RESUMED]


def test_the_end_of_a_pause_is_shown_as_no_job_and_nobody_can_forget_it(valkey_url, settings, admin_client):
    settings.REDIS_URL = valkey_url
    pauses.pause(parts=["delivery"], reason="a test", by=Actor(""))
    pauses.resume(parts=["delivery"], by=Actor(""))
    Heartbeat.beat(name="poll")
    assert {*read_status()["jobs"]} == {"poll"}
    page = admin_client.get("/admin/runtime/heartbeat/").content.decode()
    assert "poll" in page and Heartbeat.DELIVERY_RESUMED not in page


def test_a_restore_starts_the_age_anew():
    now = read_database_time()
    pauses.pause(parts=["delivery"], reason="a restore", by=Actor(""), restored_to=now - 5 * DAY)
    reconcile(lines=[])
    make_mail()
    let_pass(4 * DAY)
    assert swept() == {"pending": 1}
    pauses.resume(parts=["delivery"], by=Actor(""))
    assert swept() == {"pending": 1}


def test_an_email_that_gets_an_address_after_four_days_is_sent(sandbox):
    mail = make_mail(recipient_email="", **NO_ADDRESS._asdict())
    let_pass(4 * DAY)
    assert swept() == {"dead_lettered": 1}
    assert error_of(mail) == "no usable address"
    with transaction.atomic():
        readdress(order_id=mail.order_id, recipient_email="ann@example.com", to_name="Ann")
    assert swept() == {"pending": 1}
    assert drained() == {"sent": 1}


def test_an_email_that_gets_an_address_after_four_days_is_not_late(sandbox):
    mail = make_mail(recipient_email="", **NO_ADDRESS._asdict())
    let_pass(4 * DAY)
    with transaction.atomic():
        readdress(order_id=mail.order_id, recipient_email="ann@example.com", to_name="Ann")
    tried(mail)
    now = read_database_time()
    rows = read_facts(now=now)[UNFINISHED_EMAILS]
    assert (rows.pending, rows.waiting_overdue, rows.unfinished_seconds < 60) == (1, 0, True)
    assert not EmailNotification.objects.failing().exists()
    due_now()
    assert len(claim(limit=1)) == 1
    rows = read_facts(now=now)[UNFINISHED_EMAILS]
    assert (rows.processing, rows.processing_overdue, rows.unfinished_seconds < 60) == (1, 0, True)
    EmailNotification.objects.update(status="sent", sent_at=Now(), claim_token=None, claimed_at=None)
    minute = now.replace(second=0, microsecond=0)
    sums = read_window(Window(since=minute - HOUR, until=minute + HOUR, span=60))
    assert quantile(Sums.total(sums.values()).spreads["sent"], share=1) < 60


def test_the_sweep_covers_the_partitions_of_two_months():
    with months.tidy():
        last = months.make_partition(EmailNotification, back=2)
        months.fill(last, 3, status="pending", next_attempt_at=last.since)
        make_mail(created_at=read_database_time() - 4 * DAY)
        make_mail()
        assert swept() == {"dead_lettered": 4, "pending": 1}


def test_a_sweep_reads_a_part_of_a_long_queue_and_the_next_one_goes_on(monkeypatch):
    monkeypatch.setattr(age, "SWEEP_ROWS", 4)
    monkeypatch.setattr(age, "BATCH", 2)
    make_mails(6)  # all of them are due at the same time
    let_pass(2 * DAY)
    EmailNotification.objects.filter(
        id__in=[row.id for row in EmailNotification.objects.order_by("-id")[:2]]
    ).update(created_at=F("created_at") - DAY)
    changes, place = age.sweep(after=age.START)
    assert not changes and place != age.START
    changes, place = age.sweep(after=place)
    assert len(changes) == 2 and place == age.START


def test_the_errors_of_all_old_emails_are_one_cause():
    refused = make_mail()
    tried(refused, code="401", text="Unauthorized")
    other = make_mail()
    tried(other, provider="ses", code="403", text="The key is wrong")
    make_mail()
    let_pass(3 * DAY)
    assert swept() == {"dead_lettered": 3}
    (cause,) = dead_causes()
    assert cause.count == 3
    assert EmailNotification.objects.alias(cause=cause_of_row()).filter(cause=cause.cause).count() == 3
    for mail in EmailNotification.objects.all():
        assert explain_email(provider=mail.provider, ended_by=mail.ended_by, error=mail.last_error) is TOO_OLD


def test_a_later_email_of_the_order_is_due_as_soon_as_an_earlier_one_is_too_old(sandbox):
    first = make_mail(order_version=1, event_type="order.placed")
    let_pass(3 * DAY - MINUTE)
    later = make_mail(order_id=first.order_id, order_version=2, next_attempt_at=Now())
    EmailNotification.objects.filter(id=first.id).update(next_attempt_at=Now() + HOUR)
    assert drained() == {"pending": 2}  # the later one waits for the first
    let_pass(MINUTE)
    assert swept() == {"dead_lettered": 1, "pending": 1}
    later.refresh_from_db()
    assert later.next_attempt_at <= read_database_time()
    assert drained() == {"dead_lettered": 1, "sent": 1}


def test_each_has_its_event(settings):
    settings.EMAIL_EVENTS = True
    make_mails(2)
    let_pass(3 * DAY)
    assert swept() == {"dead_lettered": 2}
    assert [*DomainEvent.objects.values_list("event_type", flat=True)] == [TOPICS[Status.DEAD_LETTERED]] * 2


def test_an_email_that_always_fails_and_never_has_neighbours_ends(sandbox):
    sandbox.fail(status=500)
    mail = make_mail()
    for _ in range(3 * 24 // 2):
        drain.reset()  # no breaker and no memory of this process stops it
        due_now()
        drain.poll()
        let_pass(2 * HOUR)
    drain.poll()
    assert error_of(mail).startswith("too old: it waited 3 days for sendgrid (500")
    assert mail.status == "dead_lettered" and mail.retry_count == len(mail.errors) > mail.max_retries


def test_one_that_is_taken_back_keeps_its_age():
    mail = make_mail()
    tried(mail, verdict=Verdict.PERMANENT, code="550", text="Daily limit exceeded")
    let_pass(4 * DAY)
    assert take_back(provider="sendgrid", since=read_database_time() - 5 * DAY, is_same=lambda _: True)
    assert swept() == {"dead_lettered": 1}
    assert error_of(mail) == "too old: it waited 4 days for sendgrid (550 Daily limit exceeded)"


def test_two_sweeps_do_not_wait_for_each_other():
    mail = make_mail()
    let_pass(4 * DAY)
    with transaction.atomic():
        EmailNotification.objects.select_for_update().get(id=mail.id)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(sweep_elsewhere).result() == []
    assert swept() == {"dead_lettered": 1}


def sweep_elsewhere() -> list[EmailChange]:
    try:
        return age.sweep(after=age.START)[0]
    finally:
        connection.close()


def shown() -> tuple[list[str], dict[str, float]]:
    """Return what `status` says is needed, and the numbers that the alerts' descriptions query."""
    numbers = {
        family.name: family.samples[0].value
        for family in metrics.families(with_readers=True)
        if family.name.startswith("orderpost_ageing_")
    }
    return read_status()["needs"], numbers


@pytest.mark.parametrize(("hours", "warned_at"), [(72, 48 * HOUR), (30, 15 * HOUR), (1, HOUR / 2)])
def test_a_warning_comes_a_day_before_or_at_half_the_age_if_that_is_later(
    hours, warned_at, settings, valkey_url
):
    settings.REDIS_URL, settings.EMAIL_MAX_AGE_HOURS = valkey_url, hours
    make_mail()
    let_pass(warned_at - MINUTE)
    assert shown()[1]["orderpost_ageing_emails"] == 0
    let_pass(MINUTE)
    assert shown()[1]["orderpost_ageing_emails"] == 1
    assert shown()[1]["orderpost_ageing_left_seconds"] == pytest.approx(
        (hours * HOUR - warned_at).total_seconds(), abs=30
    )


def test_ten_days_with_a_wrong_key(sandbox, settings, valkey_url, admin_client):
    settings.REDIS_URL, settings.BREAKER_OPEN_SECONDS = valkey_url, 0.01
    drain.reset()
    sandbox.fail(status=401, message="The provided authorization grant is invalid")
    paid = make_mail(order_version=1, subject="paid")
    cancelled = make_mail(
        order_id=paid.order_id, order_version=2, event_type="order.cancelled", subject="cancelled"
    )
    paid_only = make_mail(subject="paid by another customer")
    drain.poll()
    pass_days(2)
    late = make_mail(subject="paid on the third day")
    drain.poll()
    needs, numbers = shown()
    warning = "2 e-mails become dead letters, the first in 23 hours"
    assert [warning in sentence for sentence in needs].count(True) == 1, needs
    assert warning in html.unescape(admin_client.get("/admin/").content.decode())
    assert numbers["orderpost_ageing_emails"] == 2
    assert numbers["orderpost_ageing_left_seconds"] == pytest.approx(24 * 3600, abs=60)
    assert read_status()["emails"]["dead_lettered"] == 0

    pass_days(1)
    assert statuses() == {"discarded": 1, "dead_lettered": 2, "pending": 1}
    assert read_status()["emails"]["dead_lettered"] == 2
    assert any(sentence.startswith("2 dead letters") for sentence in shown()[0])
    assert shown()[1]["orderpost_ageing_emails"] == 0  # the third has two days left
    pass_days(5)
    new = make_mail(subject="paid on the ninth day")
    pass_days(2)
    assert statuses() == {"discarded": 1, "dead_lettered": 3, "pending": 1}

    sandbox.heal()
    new_ones = make_mail(subject="paid after the repair")
    deadline = time.monotonic() + PATIENCE
    while statuses().get("pending") and time.monotonic() < deadline:
        due_now()
        drain.poll()
    assert sorted(mail.subject for mail in sandbox.mails) == [
        "paid after the repair",
        "paid on the ninth day",
    ]
    assert error_of(paid) == "overtaken by order.cancelled"
    for mail in (cancelled, paid_only, late):
        assert re.match(r"too old: it waited 3 days for (sendgrid \(401|a provider$)", error_of(mail))
        assert mail.status == "dead_lettered" and mail.retry_count == 0
    for mail in (new, new_ones):
        mail.refresh_from_db()
        assert mail.status == "sent"


def pass_days(count: int) -> None:
    """Let days pass with a poll on each."""
    for _ in range(count):
        let_pass(DAY)
        drain.poll()


@pytest.fixture
def paid_and_cancelled() -> list[EmailNotification]:
    """Return dead letters that are too old: a payment, the order's cancellation, and another payment."""
    paid = make_mail(order_version=1)
    cancelled = make_mail(order_id=paid.order_id, order_version=2, event_type="order.cancelled")
    other = make_mail(order_version=1)
    let_pass(4 * DAY)
    assert swept() == {"dead_lettered": 3}
    return [paid, cancelled, other]


def run_resend(**filter: str) -> BulkJob:
    job = start_job(
        action=RESEND.name, filter=filter, user=User.objects.create_superuser(str(new_id())), by=Actor("x")
    )
    run_bulk_jobs()
    job.refresh_from_db()
    return job


def test_resending_all_of_the_cause_leaves_out_and_counts_what_is_overtaken(paid_and_cancelled):
    paid, *others = paid_and_cancelled
    (cause,) = dead_causes()
    job = run_resend(cause=cause.cause)
    assert (job.done_count, job.refusals) == (2, {"overtaken by order.cancelled": 1})
    assert error_of(paid).startswith("too old") and paid.status == "dead_lettered"
    for mail in others:
        mail.refresh_from_db()
        assert mail.status == "pending"


def test_ticked_ones_are_treated_alike_and_one_that_is_chosen_alone_is_resent(
    paid_and_cancelled, admin_client
):
    paid, cancelled, _ = paid_and_cancelled
    job = run_resend(ids=f"{paid.id},{cancelled.id}")
    assert (job.done_count, job.refusals) == (1, {"overtaken by order.cancelled": 1})
    admin_client.post(f"/admin/notifications/emailnotification/{paid.id}/act/", {"action": "resend"})
    paid.refresh_from_db()
    assert paid.status == "pending"


def test_the_command_to_resend_all_dead_letters_leaves_out_what_is_overtaken(paid_and_cancelled):
    with transaction.atomic():
        assert resend_dead_letters(by=Actor("x")) == (2, 1)


def test_one_that_failed_and_will_be_discarded_at_its_next_attempt_is_not_resent_among_many():
    paid = make_mail(order_version=1, status="failed")
    make_mail(order_id=paid.order_id, order_version=2, event_type="order.cancelled", status="failed")
    job = run_resend(status="failed")
    assert (job.done_count, job.refusals) == (1, {"overtaken by order.cancelled": 1})


def test_a_resend_of_all_that_were_given_up_by_mistake_brings_no_old_news_back(sandbox):
    paid = make_mail(order_version=1)
    cancelled = make_mail(order_id=paid.order_id, order_version=2, event_type="order.cancelled")
    other = make_mail(order_version=1, next_attempt_at=Now() + HOUR)
    assert drained() == {"discarded": 1, "sent": 1, "pending": 1}
    assert give_up(ids=[other.id])[0]
    job = run_resend(status="discarded")
    assert (job.done_count, job.refusals) == (1, {"overtaken by order.cancelled": 1})
    assert drained() == {"discarded": 1, "sent": 2}
    assert cancelled.id in {mail.id for mail in EmailNotification.objects.filter(status="sent")}


def test_a_resend_of_all_that_were_given_up_by_mistake_leaves_out_what_a_copy_replaced():
    replaced, _ = make_mail(status="discarded"), make_mail(status="discarded")
    make_mail(order_id=replaced.order_id, resend_of=replaced.id, status="sent")
    job = run_resend(status="discarded")
    assert (job.done_count, job.refusals) == (1, {"it was given up, and a copy of it was made": 1})
    assert statuses() == {"discarded": 1, "pending": 1, "sent": 1}
    assert resend(ids=[replaced.id])[0]


def test_an_overtaken_dead_letter_that_is_not_too_old_is_resent_as_before():
    paid = make_mail(order_version=1, status="dead_lettered", last_error="550 no such user")
    make_mail(order_id=paid.order_id, order_version=2, event_type="order.cancelled")
    assert run_resend(status="dead_lettered").done_count == 1


def test_a_sweep_reads_few_rows_more_than_it_says_however_many_wait():
    make_mails(3000)
    EmailNotification.objects.update(next_attempt_at=F("next_attempt_at") - Random() * MINUTE)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE email_notifications")
    values = {"age": age.max_age(), "limit": 100, **age.START._asdict()}
    for mode in ("force_custom_plan", "force_generic_plan"):
        with connection.cursor() as cursor:
            cursor.execute(f"SET plan_cache_mode = {mode}")
        with statements(at_most=1) as asked, connection.cursor() as cursor:
            cursor.execute(age._READ, values)
        plan = plan_of(asked[0])
        assert plan.visited < 200, plan
