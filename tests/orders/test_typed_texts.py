"""A text that an operator types and that is kept has no address, and an erasure finds the person in it."""

from __future__ import annotations

import io

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from outbox import bulk
from outbox.database.ids import new_id
from outbox.models import BulkJob, OutboxEvent, Pause
from outbox.privacy import AddressGiven
from tests.factories import make_mail, make_order, statuses

pytestmark = pytest.mark.django_db
REASON = "moved by Ann <ann@example.com>"
REFUSED = "Leave the e-mail address out"
MAILS = "/admin/notifications/emailnotification/"


class TestRefused:
    @pytest.mark.parametrize(
        ("filter", "reason"),
        [({"status": "failed"}, REASON), ({"status": "failed", "provider": "ann@example.com"}, "")],
    )
    def test_a_job_takes_none_in_its_filter_or_reason(self, filter, reason):
        user = User.objects.create_superuser("ann")
        with pytest.raises(AddressGiven, match=REFUSED):
            bulk.start_job(action="notifications.resend", filter=filter, user=user, reason=reason)
        assert not BulkJob.objects.exists()

    @pytest.mark.parametrize("given", [{"reason": REASON}, {"provider": "ann@example.com"}])
    def test_a_job_for_all_that_match_asks_again(self, admin_client, given):
        make_mail(status="dead_lettered")
        posted = {"action": "resend", "confirmed": "yes", "status": "dead_lettered"} | given
        page = admin_client.post(f"{MAILS}bulk/", posted)
        assert REFUSED in page.content.decode() and 'name="confirmed"' in page.content.decode()
        assert not BulkJob.objects.exists()

    def test_an_action_on_ticked_rows_asks_again(self, admin_client):
        mail = make_mail(status="dead_lettered")
        posted = {"action": "resend", "_selected_action": [str(mail.id)], "confirmed": "yes"}
        page = admin_client.post(MAILS, posted | {"reason": REASON}).content.decode()
        assert REFUSED in page and f'value="{mail.id}"' in page and 'name="confirmed"' in page
        assert statuses() == {"dead_lettered": 1} and not LogEntry.objects.exists()

    def test_a_job_for_a_list_of_events_is_not_started(self, admin_client):
        event = OutboxEvent.objects.create(
            aggregate_type="t",
            aggregate_id=new_id(),
            event_type="t.v1",
            sequence=1,
            payload={},
            shard=1,
            dead_lettered_at=Now(),
        )
        posted = {"action": "discard", "_selected_action": [str(event.id)], "select_across": "1"}
        address = "/admin/outbox/outboxevent/?state=dead-lettered&since=ann@example.com"
        page = admin_client.post(address, posted, follow=True)
        assert REFUSED in page.content.decode()
        assert not BulkJob.objects.exists()

    def test_an_event_is_not_sent_again_to_an_address(self, admin_client):
        event = OutboxEvent.objects.create(
            aggregate_type="t",
            aggregate_id=new_id(),
            event_type="t.v1",
            sequence=1,
            payload={},
            shard=1,
            published_at=Now(),
        )
        posted = {"action": "send_again", "_selected_action": [str(event.id)], "consumer": "ann@example.com"}
        page = admin_client.post("/admin/outbox/outboxevent/", posted, follow=True)
        assert REFUSED in page.content.decode() and not LogEntry.objects.exists()

    @pytest.mark.parametrize("to", ["pause", "resume"])
    def test_a_pause_takes_none(self, admin_client, to):
        posted = {"part": "relay", "to": to, "reason": REASON}
        page = admin_client.post("/admin/outbox/pause/", posted, follow=True)
        assert REFUSED in page.content.decode()
        assert not Pause.objects.exists() and not LogEntry.objects.exists()

    def test_the_command_pause_takes_none(self):
        with pytest.raises(CommandError, match=f"--reason: {REFUSED}"):
            call_command("pause", "--reason", REASON, stdout=io.StringIO())
        assert not Pause.objects.exists()

    def test_a_copys_reason_has_none(self, admin_client):
        mail = make_mail(status="sent", order_id=make_order().id)
        posted = {"recipient_email": "ann@example.com", "reason": REASON}
        page = admin_client.post(f"/admin/orders/order/copies/{mail.id}/", posted)
        assert REFUSED in page.content.decode() and not LogEntry.objects.exists()

    def test_other_texts_are_taken_as_before(self):
        Pause.objects.pause(parts=["relay"], reason="3 @ 5 o'clock, see #12", username="ann")
        assert Pause.objects.get().reason == "3 @ 5 o'clock, see #12"
