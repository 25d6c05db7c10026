"""The drain that a trigger wakes in its own process: at once, once for each e-mail, and without a broker."""

from __future__ import annotations

import threading

import pytest
from django.db import OperationalError, connection

from notifications.delivery import drain, process
from notifications.delivery.woken import WokenDrain
from notifications.models import EmailNotification
from notifications.providers.sending import PROVIDERS
from outbox.delivery.rows.outcomes import Status
from outbox.models import Heartbeat
from tests.factories import make_mail, statuses
from tests.notifications.test_delivery import sandbox  # noqa: F401
from tests.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def seldom(settings):
    """Poll so seldom that whatever happens is a trigger's doing."""
    settings.POLL_INTERVAL = 3600.0
    settings.FAST_PATH = False


def sent(count: int) -> bool:
    return statuses() == {"sent": count}


def test_it_sends_what_is_due_at_its_start_and_what_it_is_woken_for(sandbox, seldom):  # noqa: F811
    make_mail()
    with WokenDrain(stopped=threading.Event()) as emails:
        until(lambda: sent(1))
        make_mail()
        emails.targets()["email_notifications"]()
        until(lambda: sent(2))
    assert sorted(accepted for _, accepted in sandbox.mailbox.counts().values()) == [1, 1]
    assert Heartbeat.read_age(name=drain.POLL) is None  # the standby goes on watching for beat's polls


def test_two_of_them_woken_by_the_same_rows_send_each_once(sandbox, seldom):  # noqa: F811
    """Two processes are two sets of rows' claims; here the second one is a plain drain of this process."""
    with WokenDrain(stopped=threading.Event()) as one:
        for _ in range(10):
            make_mail()
            one.wake()
            drain.drain_emails()
        until(lambda: sent(10), meanwhile=one.wake)
    assert [accepted for _, accepted in sandbox.mailbox.counts().values()] == [1] * 10


def test_it_takes_up_a_new_mail_while_a_send_hangs(sandbox, seldom):  # noqa: F811
    sandbox.fail(kind="hang", seconds=60, to="slow@")
    slow, fast = make_mail(recipient_email="slow@example.com"), None
    with WokenDrain(stopped=threading.Event()) as emails:
        until(lambda: sandbox.stats()["requests"] >= 1)
        fast = make_mail()
        emails.wake()
        until(lambda: EmailNotification.objects.get(id=fast.id).status == Status.SENT)
        assert EmailNotification.objects.get(id=slow.id).status in (Status.PROCESSING, Status.FAILED)
        sandbox.heal()


def test_a_retry_goes_out_when_it_is_due_though_the_fast_path_is_off(sandbox, seldom, settings):  # noqa: F811
    settings.RETRY_BACKOFF_BASE = settings.RETRY_BACKOFF_CAP = 0.2
    settings.BREAKER_OPEN_SECONDS = 0.2
    process.start_anew()
    sandbox.fail(kind="status", status=503)
    make_mail()
    with WokenDrain(stopped=threading.Event()):
        until(lambda: sandbox.stats()["requests"] >= 2)
        sandbox.heal()
        until(lambda: sent(1))


def test_a_database_that_is_away_is_tried_again(sandbox, seldom, monkeypatch):  # noqa: F811
    failed = threading.Event()
    drain_due = drain.drain_due

    def away_once():
        if not failed.is_set():
            failed.set()
            raise OperationalError("terminating connection")
        return drain_due()

    monkeypatch.setattr(drain, "drain_due", away_once)
    make_mail()
    with WokenDrain(stopped=threading.Event()):
        until(lambda: sent(1))
    assert failed.is_set()


def test_a_bug_ends_the_process_instead_of_a_thread(seldom, monkeypatch):
    def broken(**_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(drain, "poll", broken)
    stopped = threading.Event()
    with pytest.raises(ZeroDivisionError), WokenDrain(stopped=stopped):
        assert stopped.wait(20)


def test_a_stop_gives_back_what_is_not_begun_and_waits_for_what_is(sandbox, seldom, settings):  # noqa: F811
    settings.EMAIL_CONCURRENCY = 1
    process.start_anew()
    sandbox.fail(kind="slow", seconds=0.5)
    for _ in range(5):
        make_mail()
    with WokenDrain(stopped=threading.Event()):
        until(lambda: sandbox.stats()["requests"] >= 1)
    found = statuses()
    assert found.get("processing", 0) == 0 and found["sent"] >= 1 and found["pending"] >= 1
    assert sum(accepted for _, accepted in sandbox.mailbox.counts().values()) == found["sent"]
    connection.close()
    PROVIDERS["sendgrid"].close()
