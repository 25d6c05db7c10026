"""The domain event of an e-mail's end, when it cannot be written: EMAIL_EVENTS with a failing database."""

from __future__ import annotations

import psycopg
import pytest
from django.db import DatabaseError, OperationalError, connection

from notifications import models
from tests.kit.mails import make_mail, statuses
from tests.kit.months import dsn
from tests.kit.words import EmailNotification, OutboxEvent, Outcome, Verdict

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def accepted(settings) -> tuple[EmailNotification, Outcome]:
    settings.EMAIL_EVENTS = True
    make_mail()
    (mail,) = EmailNotification.objects.claim(limit=1)
    return (mail, Outcome(Verdict.ACCEPTED, "sendgrid"))


def test_an_event_that_is_refused_takes_no_acceptance_with_it(accepted, monkeypatch):
    def refused(*_: object) -> None:
        raise DatabaseError("value too long")

    monkeypatch.setattr(models, "_publish_end", refused)
    assert len(EmailNotification.objects.settle([accepted])) == 1
    assert statuses() == {"sent": 1} and not OutboxEvent.objects.exists()


def test_a_connection_that_is_lost_at_the_event_is_an_error_and_the_outcome_is_written_again(
    accepted, monkeypatch
):
    publish = models._publish_end

    def lost(*_: object) -> None:
        pid = connection.connection.info.backend_pid
        with psycopg.connect(dsn(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        connection.cursor().execute("SELECT 1")

    monkeypatch.setattr(models, "_publish_end", lost)
    with pytest.raises(OperationalError):
        EmailNotification.objects.settle([accepted])
    connection.close()
    assert statuses() == {"processing": 1}
    monkeypatch.setattr(models, "_publish_end", publish)
    EmailNotification.objects.settle([accepted])
    assert statuses() == {"sent": 1} and OutboxEvent.objects.count() == 1
