"""What providers tell afterwards: signed, fresh, in any order and number; and whatever else is posted."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid

import pytest
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from notifications.checks import check_unsigned, check_webhook_keys
from tests.kit.mails import claim_one, make_mails, settled, statuses
from tests.kit.webhooks import URL, event, offered_mail, post
from tests.kit.words import (
    EmailNotification,
    Heartbeat,
    Status,
    Suppression,
    Verdict,
    address_hash,
    declarations,
    make_key,
    new_id,
)

pytestmark = pytest.mark.django_db
NOW = 1_795_000_000  # some time that SendGrid could say
WITH_WEBHOOKS = [name for name, declared in declarations().items() if declared.webhook]


@pytest.fixture(autouse=True)
def _open(settings):
    """Configure every provider and believe unsigned posts, because signatures have tests of their own."""
    settings.WEBHOOKS_UNSIGNED = True
    settings.EMAIL_PROVIDERS = list(declarations())


@pytest.fixture
def beats(monkeypatch) -> list[str]:
    """Return the list of the heartbeats that will be written."""
    names: list[str] = []
    monkeypatch.setattr(Heartbeat, "beat", lambda *, name, every: names.append(name))
    return names


def fresh(mail: EmailNotification) -> EmailNotification:
    return EmailNotification.objects.get(id=mail.id)


class TestEffects:
    @pytest.mark.parametrize("kind", ["processed", "deferred", "delivered", "open", "click", "spamreport"])
    def test_whatever_shows_that_the_provider_has_it_makes_an_unsent_mail_sent(self, kind):
        for status in Status:
            mail = offered_mail(status=status)
            assert post([event(mail, kind)]).status_code == 200
            row = fresh(mail)
            assert row.status == "sent" and row.sent_at and row.claim_token is row.claimed_at is None
            if status is not Status.SENT:
                assert (row.provider, row.provider_message_id) == ("sendgrid", "14c5d75ce93")

    def test_a_workers_later_word_changes_nothing_after_it(self):
        mail = offered_mail()
        claimed = claim_one()
        post([event(mail, "processed")])
        assert settled(claimed, Verdict.PERMANENT, code="x") == []
        assert fresh(mail).status == "sent" and fresh(mail).errors == []

    def test_delivered_keeps_the_earliest_time(self):
        mail = offered_mail(status=Status.SENT)
        for at in (NOW + 5, NOW, NOW + 9):
            post([event(mail, "delivered", timestamp=at)])
        assert fresh(mail).delivered_at == dt.datetime.fromtimestamp(NOW, dt.UTC)

    def test_a_hard_bounce_is_kept_and_its_address_suppressed_as_a_hash(self):
        mail = offered_mail(status=Status.SENT, recipient_email="Gone@Example.com")
        post([event(mail, "bounce", type="bounce", status="5.1.1")])
        assert fresh(mail).bounced_at and fresh(mail).status == "sent"
        row = Suppression.objects.get()
        assert row.address_hash == address_hash("gone@example.com") and row.reason == "hard_bounce"
        assert (row.provider, row.notification_id) == ("sendgrid", mail.id)

    def test_a_block_is_no_hard_bounce(self):
        mail = offered_mail(status=Status.SENT)
        post([event(mail, "bounce", type="blocked")])
        assert fresh(mail).bounced_at is None and not Suppression.objects.exists()

    def test_a_complaint_is_kept_and_suppresses(self):
        mail = offered_mail(status=Status.SENT)
        post([event(mail, "spamreport")])
        assert fresh(mail).complained_at and Suppression.objects.get().reason == "complaint"

    @pytest.mark.parametrize(
        ("reason", "suppressed"),
        [
            ("Bounced Address", "hard_bounce"),
            ("Spam Reporting Address", "complaint"),
            ("Spam Content", None),
            ("Unsubscribed Address", None),
        ],
    )
    def test_dropped_was_taken_and_will_not_arrive(self, reason, suppressed):
        mail = offered_mail(status=Status.FAILED)
        post([event(mail, "dropped", reason=reason)])
        assert fresh(mail).status == "sent" and fresh(mail).bounced_at
        assert list(Suppression.objects.values_list("reason", flat=True)) == [suppressed] * bool(suppressed)

    def test_repeats_and_any_order_end_in_the_same(self):
        ends = set()
        for number, order in enumerate(itertools.permutations(["processed", "delivered", "spamreport"])):
            mail = offered_mail(status=Status.FAILED, recipient_email=f"{number}@example.com")
            for kind in (*order, *order):
                post([event(mail, kind, timestamp=NOW)])
            row = fresh(mail)
            ends.add((row.status, row.delivered_at, row.complained_at, row.bounced_at))
        assert len(ends) == 1

    @pytest.mark.parametrize(("kind", "more"), [("bounce", {"type": "bounce"}), ("spamreport", {})])
    def test_a_repeat_does_not_suppress_an_address_that_a_person_has_lifted(self, kind, more):
        mail = offered_mail(status=Status.SENT)
        told = event(mail, kind, timestamp=NOW, **more)
        post([told])
        Suppression.objects.all().delete()
        post([told])
        assert not Suppression.objects.exists()
        post([told | {"timestamp": NOW + 3600}])  # it bounced again, after a resend
        assert Suppression.objects.count() == 1

    def test_unknown_ids_are_ignored(self):
        mail = offered_mail()
        ids = [str(new_id()), str(uuid.uuid4()), "", "x", None, 5, [], {}, str(uuid.UUID(int=0))]
        assert post([event(id, "delivered") for id in ids]).status_code == 200
        missing = event(mail, "delivered")
        del missing["notification_id"]
        assert post([missing]).status_code == 200
        assert statuses() == {"pending": 1}

    def test_one_bad_event_does_not_keep_the_others_away(self):
        mail = offered_mail()
        batch = [None, 5, {}, {"event": 7}, event(mail, "delivered", timestamp="x"), event(mail, "delivered")]
        assert post(batch).status_code == 200
        assert fresh(mail).status == "sent"

    def test_a_thousand_events_take_a_few_statements(self, django_assert_max_num_queries):
        make_mails(500, status="failed")
        EmailNotification.objects.update(provider="sendgrid")
        ids = list(EmailNotification.objects.values_list("id", flat=True))
        batch = [event(str(id), kind) for id in ids for kind in ("processed", "spamreport")]
        with django_assert_max_num_queries(10):
            assert post(batch).status_code == 200
        assert statuses() == {"sent": 500} and Suppression.objects.count() == 500

    def test_the_delivery_of_a_sent_email_takes_a_read_and_an_update(self, beats, django_assert_num_queries):
        mail = offered_mail(status=Status.SENT)
        with django_assert_num_queries(2):
            assert post([event(mail, "processed"), event(mail, "delivered")]).status_code == 200
        assert fresh(mail).delivered_at

    def test_arrival_leaves_a_mark(self, beats):
        post([event(offered_mail(), "delivered")])
        assert beats == ["webhook:sendgrid"]

    def test_an_impossible_time_becomes_now(self):
        mail = offered_mail(status=Status.SENT)
        for at in (-(10**18), 10**18, 10**11, 0, 1e300):
            assert post([event(mail, "delivered", timestamp=at)]).status_code == 200
        at = fresh(mail).delivered_at
        assert at is not None and abs((dt.datetime.now(dt.UTC) - at).total_seconds()) < 60


class TestAccess:
    def test_without_a_key_nobody_is_believed_however_well_they_know_the_id(self, settings, beats):
        settings.WEBHOOKS_UNSIGNED = False
        mail = offered_mail(status=Status.FAILED)
        answer = post([event(mail, "delivered")])
        assert answer.status_code == 401 and answer["Content-Type"] == "application/problem+json"
        assert fresh(mail).status == "failed" and fresh(mail).delivered_at is None
        assert beats == ["refused:unsigned:sendgrid"]  # so that a test can name the key

    @pytest.mark.parametrize("name", ["DEBUG", "WEBHOOKS_UNSIGNED"])
    def test_whoever_tries_things_out_may_post_unsigned(self, settings, name):
        settings.WEBHOOKS_UNSIGNED = False
        setattr(settings, name, True)
        mail = offered_mail(status=Status.FAILED)
        assert post([event(mail, "delivered")]).status_code == 200
        assert fresh(mail).status == "sent"

    @pytest.mark.parametrize("name", ["WEBHOOKS_UNSIGNED", "DEBUG"])
    def test_a_key_is_asked_for_even_then(self, settings, name):
        settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()[1]
        setattr(settings, name, True)
        mail = offered_mail(status=Status.FAILED)
        assert post([event(mail, "delivered")]).status_code == 401
        assert fresh(mail).status == "failed"

    @pytest.mark.parametrize("provider", ["resend", "ses", "smtp", "x", "sendgrid/", ""])
    def test_a_provider_that_is_not_configured_or_posts_nothing_has_no_address(self, settings, provider):
        settings.EMAIL_PROVIDERS = ["sendgrid", "smtp"]
        mail = offered_mail(status=Status.FAILED)
        for body in ([event(mail, "delivered")], b"{"):
            answer = post(body, f"/webhooks/{provider}")
            assert answer.status_code == 404 and answer["Content-Type"] == "application/problem+json"
        assert fresh(mail).status == "failed"

    def test_a_check_warns_of_a_missing_key_and_of_unsigned_posts(self, settings):
        settings.EMAIL_PROVIDERS = ["sendgrid", "smtp"]
        assert [warning.id for warning in (*check_webhook_keys(), *check_unsigned())] == [
            "notifications.W001",
            "notifications.W002",
        ]
        settings.WEBHOOKS_UNSIGNED = False
        settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()[1]
        assert [*check_webhook_keys(), *check_unsigned()] == []


class TestWhateverIsPosted:
    @pytest.mark.parametrize("provider", WITH_WEBHOOKS)
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"null",
            b"{}",
            b'"x"',
            b"17",
            b"[[[]]]",
            b"[" * 100_000,
            b'{"type": "email.bounced", "data": {"bounce": 5, "to": 7, "headers": 3}}',
            b'{"type": [], "data": null}',
            b'{"Type": "Notification", "Message": "[]"}',
        ],
    )
    def test_is_never_a_500_and_changes_nothing(self, provider, body):
        offered_mail()
        headers = {"x-amz-sns-message-type": "Notification"}
        answer = post(body, f"/webhooks/{provider}", **headers)
        assert answer.status_code in (200, 400, 401), answer.content
        assert statuses() == {"pending": 1} and not Suppression.objects.exists()

    def test_too_much_is_413(self, settings):
        assert post(b" " * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE + 1)).status_code == 413

    @pytest.mark.parametrize("method", ["get", "put", "delete", "patch"])
    def test_another_method_is_405(self, method):
        answer = getattr(Client(), method)(URL)
        assert answer.status_code == 405 and answer["Allow"] == "POST, HEAD"

    def test_head_is_answered_for_those_who_verify_by_it(self):
        assert Client().head(URL).status_code == 200

    @hypothesis_settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(
            st.dictionaries(
                st.sampled_from(
                    ["event", "timestamp", "email", "type", "reason", "notification_id", "sg_message_id"]
                ),
                st.recursive(
                    st.none()
                    | st.booleans()
                    | st.floats(allow_nan=False)
                    | st.integers()
                    | st.text()
                    | st.sampled_from(["bounce", "delivered", "dropped", "blocked", "spamreport"]),
                    lambda inner: (
                        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
                    ),
                    max_leaves=5,
                ),
            ),
            max_size=5,
        )
    )
    def test_no_batch_of_odd_events_is_a_500(self, batch):
        assert post(batch).status_code == 200
