"""A text that an operator types and that is kept has no address, and an erasure erases it whole."""

from __future__ import annotations

import io
import uuid
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from runtime.audit import Actor
from runtime.models import AuditRow
from tests.kit.acts import acts, record_now, told_acts
from tests.kit.mails import make_mail
from tests.kit.months import Steps, fill, make_partition, states
from tests.kit.orders import make_order
from tests.kit.words import (
    AddressGiven,
    BulkJob,
    DomainEvent,
    EmailNotification,
    Pause,
    erase_person,
    erasure,
    new_id,
    pauses,
    rollover,
    start_job,
)

pytestmark = pytest.mark.django_db
REASON = "moved by Ann <ann@example.com>"
REFUSED = "Leave the e-mail address out"
MAILS = "/admin/notifications/emailnotification/"


def make_event(**times: Any) -> DomainEvent:
    row = {"aggregate_type": "t", "event_type": "t.v1", "sequence": 1, "payload": {}, "shard": 1}
    return DomainEvent.objects.create(aggregate_id=new_id(), **row, **times)


class TestRefused:
    @pytest.mark.parametrize(
        ("filter", "reason"),
        [({"status": "failed"}, REASON), ({"status": "failed", "provider": "ann@example.com"}, "")],
    )
    def test_a_job_takes_none_in_its_filter_or_reason(self, filter, reason):
        user = User.objects.create_superuser("ann")
        with pytest.raises(AddressGiven, match=REFUSED):
            start_job(action="notifications.resend", filter=filter, user=user, by=Actor("x"), reason=reason)
        assert not BulkJob.objects.exists()

    @pytest.mark.parametrize("typed", [{"reason": REASON}, {"provider": "ann@example.com"}])
    def test_a_job_for_all_that_match_asks_again(self, admin_client, typed):
        make_mail(status="dead_lettered")
        posted = {"action": "resend", "confirmed": "yes", "status": "dead_lettered"} | typed
        page = admin_client.post(f"{MAILS}bulk/", posted)
        assert REFUSED in page.content.decode() and 'name="confirmed"' in page.content.decode()
        assert not BulkJob.objects.exists()

    def test_an_action_on_ticked_rows_asks_again(self, admin_client):
        mail = make_mail(status="dead_lettered")
        posted = {"action": "resend", "ids": str(mail.id), "confirmed": "yes"}
        page = admin_client.post(f"{MAILS}bulk/", posted | {"reason": REASON}).content.decode()
        assert REFUSED in page and f'value="{mail.id}"' in page and 'name="confirmed"' in page
        assert not BulkJob.objects.exists()

    def test_a_job_for_a_list_of_events_is_not_started(self, admin_client):
        event = make_event(dead_lettered_at=Now())
        posted = {"action": "discard", "_selected_action": [str(event.id)], "select_across": "1"}
        address = "/admin/events/domainevent/?state=dead-lettered&since=ann@example.com"
        page = admin_client.post(address, posted, follow=True)
        assert REFUSED in page.content.decode()
        assert not BulkJob.objects.exists()

    @pytest.mark.parametrize("to", ["pause", "resume"])
    def test_a_pause_takes_none(self, admin_client, to):
        posted = {"part": "relay", "to": to, "reason": REASON}
        page = admin_client.post("/admin/runtime/pause/", posted, follow=True)
        assert REFUSED in page.content.decode()
        assert not Pause.objects.exists() and not acts().exists()

    def test_the_command_pause_takes_none(self):
        with pytest.raises(CommandError, match=f"--reason: {REFUSED}"):
            call_command("pause", "--all", "--reason", REASON, stdout=io.StringIO())
        assert not Pause.objects.exists()

    def test_a_copys_reason_has_none(self, admin_client):
        mail = make_mail(status="sent", order_id=make_order().id)
        posted = {"recipient_email": "ann@example.com", "reason": REASON}
        page = admin_client.post(f"/admin/orders/order/copies/{mail.id}/", posted)
        assert REFUSED in page.content.decode() and not acts().exists()

    def test_other_texts_are_taken_as_before(self):
        pauses.pause(parts=["relay"], reason="3 @ 5 o'clock, see #12", by=Actor("ann"))
        assert Pause.objects.get().reason == "3 @ 5 o'clock, see #12"


class TestErased:
    """A reason is erased whole on rows of the person's orders and e-mails, and if it has the address."""

    pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])]

    def erase(self) -> dict[str, int]:
        done = erase_person(email="ann@example.com", report=lambda step, **_: None, force=True)
        return done.counts

    def act(self, message: str, *, id: object = "", order_id: uuid.UUID | None = None) -> None:
        """Record an act whose message is "Our own words. What was typed"."""
        said, _, reason = message.partition(". ")
        row = AuditRow(kind="email", act=f"{said.rstrip('.')}.", reason=reason, subject_id=str(id))
        row.order_id = order_id
        record_now(row)

    def test_reasons_of_the_persons_rows_are_erased_whatever_they_say_and_others_stay(self):
        order, other = make_order(email="ann@example.com", name="Ann"), make_order(email="bob@example.com")
        mail = make_mail(order_id=order.id, recipient_email="ann@example.com")
        self.act("Copied: 0190. called. again", id=mail.id)
        self.act("Copied: 0191. Ann called", id=0, order_id=order.id)
        self.act("Given up (was failed).", id=mail.id)
        self.act("Corrected the address. Änne called", id=order.id)
        self.act("Corrected the address. Bob called", id=other.id)
        self.act("Paused. a sale")
        assert self.erase()["audit_rows"] == 3
        assert told_acts() == [
            "Copied: 0190. [erased]",
            "Copied: 0191. [erased]",
            "Given up (was failed).",
            "Corrected the address. [erased]",
            "Corrected the address. Bob called",
            "Paused. a sale",
        ]
        assert "audit_rows" not in {table for table, count in self.erase().items() if count}

    def test_reasons_that_the_release_before_wrote_into_djangos_log_are_erased(self):
        order, user = make_order(email="ann@example.com"), User.objects.create(username="op")
        for message in ("Corrected the address. Änne called", "Given up.", "Paused. ann@example.com called"):
            LogEntry.objects.create(
                user=user, object_id=str(order.id), object_repr="x", action_flag=2, change_message=message
            )
        self.erase()
        said = list(LogEntry.objects.order_by("id").values_list("change_message", flat=True))
        assert said == ["Corrected the address. [erased]", "Given up.", "[erased]"]

    def test_reasons_on_emails_of_a_detached_month_are_erased(self, archive_folder, monkeypatch):
        month = make_partition(EmailNotification, back=4)
        (theirs,) = fill(month, 1, recipient_email="ANN@example.com")
        (others,) = fill(make_partition(EmailNotification, back=5), 1, recipient_email="bob@example.com")
        assert not rollover.rollover(report=Steps()).held and states()[month.name] == "detached"
        for id in (theirs, others):
            self.act("Given up (was failed). Ann called", id=id)
        with monkeypatch.context() as patched:
            patched.setattr(erasure, "erase_rows", fail)
            with pytest.raises(RuntimeError):
                self.erase()
        self.erase()
        assert told_acts() == ["Given up (was failed). [erased]", "Given up (was failed). Ann called"]

    def test_texts_with_the_address_are_erased_and_those_of_a_namesake_stay(self):
        self.act("Paused. ANN@example.com complained")
        self.act("Paused. joann@example.com complained")
        for reason in ("ann@example.com", "joann@example.com"):
            BulkJob.objects.create(action="notifications.resend", username="op", reason=reason)
        Pause.objects.create(part="relay", reason="ann@example.com asked")
        Pause.objects.create(part="delivery", reason="a sale")
        assert self.erase() == {"bulk_jobs": 1, "pauses": 1, "audit_rows": 1}
        assert told_acts() == ["Paused. [erased]", "Paused. joann@example.com complained"]
        reasons = BulkJob.objects.order_by("id").values_list("reason", flat=True)
        assert list(reasons) == ["[erased]", "joann@example.com"]
        assert set(Pause.objects.values_list("part", "reason")) == {
            ("relay", "[erased]"),
            ("delivery", "a sale"),
        }
        assert self.erase() == {}

    def test_a_kill_before_the_orders_are_erased_loses_no_reason(self, monkeypatch):
        order = make_order(email="ann@example.com", name="Ann de Groot")
        self.act("Corrected the address. Ann called", id=order.id)
        with monkeypatch.context() as patched:
            patched.setattr(erasure, "erase_rows", fail)
            with pytest.raises(RuntimeError):
                self.erase()
        self.erase()
        assert told_acts() == ["Corrected the address. [erased]"]


def fail(**_: object) -> None:
    raise RuntimeError("killed")
