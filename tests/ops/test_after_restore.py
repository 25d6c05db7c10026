"""A restored database and the logs of the time that it does not know: nothing doubled, nothing lost."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import uuid

import pytest
import zstandard
from django.core.management import CommandError
from django.db import DatabaseError, transaction
from django.db.models.functions import Now

from notifications.changes.restored import mark_sent
from runtime.audit import Actor
from runtime.models import AuditRow
from tests.kit.brokers import Memory
from tests.kit.jobs import act
from tests.kit.mails import claim_one, make_mail, not_in, settled
from tests.kit.orders import pay_order, place_order
from tests.kit.people import staff_client
from tests.kit.restored import after_restore, line, restore_to_now, sent, shipped, states
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    Outcome,
    Relay,
    Verdict,
    claim,
    new_id,
    pauses,
    read_database_time,
    render_again,
    settle,
    transitions,
)
from tests.kit.words import mail_services as services

__all__ = ["shipped"]  # a fixture
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])


def test_the_lines_that_a_send_and_a_relay_really_write_are_evidence(shipped, settings):
    settings.FAST_PATH = False
    order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    pay_order(order_id=order.id)
    (mail,) = claim(limit=1)
    accepted = Outcome(Verdict.ACCEPTED, "ses", "message-1")
    settle([(mail, accepted)])
    relay = Relay(using="default", transport=Memory())
    assert relay.step() == 2
    relay.close()
    # As the moment T found them.
    EmailNotification.objects.update(status="pending", sent_at=None, provider="", provider_message_id="")
    DomainEvent.objects.update(published_at=None)
    restore_to_now()
    lost, said = after_restore(shipped)
    began = AuditRow.objects.get(kind="setup")
    assert began.who.endswith("(command)") and "with the logs" in began.act
    assert lost == [] and "found sent: 1" in said and "found published: 2" in said and "person: 0" in said
    stored = EmailNotification.objects.get()
    assert (stored.status, stored.provider, stored.provider_message_id) == ("sent", "ses", "message-1")
    assert not DomainEvent.objects.unpublished().exists()


def test_a_mark_as_sent_that_was_rolled_back_leaves_no_proof(shipped):
    rolled_back, marked = make_mail(), make_mail()
    with pytest.raises(DatabaseError), transaction.atomic():
        changes, _ = mark_sent(ids=[rolled_back.id])
        assert len(changes) == 1
        raise DatabaseError("the admin's log entry cannot be written")
    with transaction.atomic():
        mark_sent(ids=[marked.id])
    assert states() == {rolled_back.id: "pending", marked.id: "sent"}
    EmailNotification.objects.filter(id=marked.id).update(status="pending", sent_at=None)  # as T found it
    restore_to_now()
    assert "found sent: 1" in after_restore(shipped)[1]
    assert states() == {rolled_back.id: "dead_lettered", marked.id: "sent"}


def test_what_no_log_proves_waits_for_a_person_and_what_came_later_does_not(tmp_path):
    proven, doubtful, claimed = make_mail(), make_mail(), make_mail(status="processing")
    later = make_mail(next_attempt_at=read_database_time().replace(year=2099))
    restore_to_now()
    fresh = make_mail()
    log = tmp_path / "a.log"
    log.write_text(sent(proven.id))
    lost, said = after_restore(log)
    assert (lost, "person: 2" in said) == ([], True)
    assert states() == {
        proven.id: "sent",
        doubtful.id: "dead_lettered",
        claimed.id: "dead_lettered",
        later.id: "pending",
        fresh.id: "pending",
    }
    held = EmailNotification.objects.get(id=doubtful.id)
    assert held.last_error.startswith("restored ")
    before = list(EmailNotification.objects.order_by("id").values())
    assert "found sent: 0" in after_restore(log)[1]  # a second run changes nothing
    assert list(EmailNotification.objects.order_by("id").values()) == before
    services.resend(ids=[doubtful.id])
    after_restore(log)
    assert states()[doubtful.id] == "pending"  # a person has decided
    log.write_text(sent(claimed.id))  # a log that turns up late still counts
    assert "found sent: 1" in after_restore(log)[1]


def test_an_e_mail_that_was_held_for_a_webhook_is_settled_by_it_set_aside_or_still_held(tmp_path):
    now = read_database_time()

    def held(since: float) -> EmailNotification:
        """Make an e-mail that a gateway answered 504 for, `since` seconds ago, with a hold of 120."""
        at = now - dt.timedelta(seconds=since)
        doubt = {"at": at.isoformat(), "provider": "ses", "outcome": "ambiguous", "code": "504", "text": ""}
        return make_mail(status="failed", errors=[doubt], next_attempt_at=at + dt.timedelta(seconds=120))

    reported, over, lasting = held(60), held(180), held(60)
    restore_to_now()
    log = tmp_path / "a.log"
    log.write_text(sent(reported.id))  # the webhook came in the time that the database lost
    lost, said = after_restore(log)
    assert lost == [] and "found sent: 1" in said and "person: 1" in said
    assert states() == {reported.id: "sent", over.id: "dead_lettered", lasting.id: "failed"}
    changes, (refusal,) = services.resend(ids=[over.id, lasting.id])
    assert [change.id for change in changes] == [over.id]
    assert refusal.id == lasting.id and "held" in refusal.reason


def test_changes_that_the_database_lost_are_listed(tmp_path):
    order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    restore_to_now()
    mail, event, inbound, gone = new_id(), new_id(), uuid.uuid4(), uuid.uuid4()
    ids = {"order_id": str(gone), "correlation_id": "c-1"}
    log = tmp_path / "a.log"
    log.write_text(
        line("notification changed", notification_id=str(mail), now="pending", event_type="order.paid", **ids)
        + sent(mail, **ids)
        + line(
            "event published", event_id=str(event), event_type="order.order.paid.v1", order_id=str(order.id)
        )
        + line("event taken", event_id=str(inbound), topic="payment.payment.succeeded.v1")
        + line("person erased", address_hash="abc")
    )
    lost, said = after_restore(log)
    assert "database lost: 4" in said
    by_kind = {change["kind"]: change for change in lost}
    assert by_kind["e-mail"]["id"] == str(mail) and by_kind["e-mail"]["now"] == "sent"
    assert by_kind["e-mail"]["order_known"] is False and by_kind["e-mail"]["event_type"] == "order.paid"
    assert by_kind["event"]["order_known"] is True and by_kind["event"]["id"] == str(event)
    assert by_kind["inbound event"]["topic"] == "payment.payment.succeeded.v1"
    assert by_kind["erasure"]["id"] == "abc"


def test_compressed_and_wrapped_lines_are_read_and_bad_ones_are_counted(tmp_path):
    mails = [make_mail() for _ in range(4)]
    restore_to_now()
    plain, packed, zst = tmp_path / "a.log", tmp_path / "b.log.gz", tmp_path / "c.log.zst"
    broken = line("notification changed", notification_id="none", now="sent") + line("event published")
    plain.write_text("2026-11-21T20:15:00Z stderr F " + sent(mails[0].id) + "Traceback\n{\n[1]\n" + broken)
    packed.write_bytes(gzip.compress(sent(mails[1].id).encode()) + b"cut short")
    zst.write_bytes(zstandard.compress(json.dumps({"log": sent(mails[2].id)}).encode()))
    _, said = after_restore(plain, packed, zst)
    assert "found sent: 3" in said and "6 of them unreadable" in said and "person: 1" in said
    with pytest.raises(CommandError, match="No such file"):
        after_restore(tmp_path / "missing.log")


def test_a_zstandard_file_is_read_to_its_last_frame_and_one_that_is_cut_short_is_counted(tmp_path):
    mails = [make_mail() for _ in range(3)]
    restore_to_now()
    first, second, third = (zstandard.compress(sent(mail.id).encode()) for mail in mails)
    whole, cut = tmp_path / "a.log.zst", tmp_path / "b.log.zst"
    whole.write_bytes(first + zstandard.compress(b"") + second + zstandard.compress(b"no line break"))
    cut.write_bytes(third[:-9])
    _, said = after_restore(whole, cut)
    assert "found sent: 2" in said and "2 of them unreadable" in said and "person: 1" in said


def test_it_refuses_a_database_that_was_not_paused_as_restored(tmp_path):
    make_mail()
    log = tmp_path / "a.log"
    log.write_text("")
    with pytest.raises(CommandError, match="pause --all --restored-to"):
        after_restore(log)
    pauses.pause(parts=["delivery"], reason="", by=Actor("x"))
    with pytest.raises(CommandError, match="pause --all --restored-to"):
        after_restore(log)
    assert set(states().values()) == {"pending"}


def test_a_person_sends_gives_up_or_marks_as_sent_what_is_held(tmp_path, valkey_url):
    mails = [make_mail() for _ in range(3)]
    restore_to_now()
    log = tmp_path / "a.log"
    log.write_text("")
    after_restore(log)
    client = staff_client("view_emailnotification", "resend_emailnotification", "discard_emailnotification")
    page = client.get("/admin/notifications/emailnotification/causes/").content.decode()
    assert "Held after a restore of the database" in page and "Mark all 3 as sent" in page
    for mail, action in zip(mails, ("resend", "give_up", "mark_sent"), strict=True):
        act(client, action, [mail.id])
    assert [states()[mail.id] for mail in mails] == ["pending", "discarded", "sent"]
    changes, refusals = mark_sent(ids=[mails[0].id, mails[1].id, new_id()])
    assert sorted(refusal.reason for refusal in refusals) == [
        f"it is discarded, {not_in(transitions.MARK_SENT)}",
        "it is not stored, or its month was archived",
    ]
    assert [change.was for change in changes] == ["pending"]


def test_a_lost_change_is_listed_once_however_far_apart_its_lines_are(tmp_path, monkeypatch):
    monkeypatch.setattr("operations.after_restore.BATCH", 2)
    restore_to_now()
    mails = [new_id() for _ in range(5)]
    log = tmp_path / "a.log"
    first = [line("notification changed", notification_id=str(id), now="pending") for id in mails]
    then = [sent(id, order_id=str(new_id())) for id in reversed(mails)]
    log.write_text("".join([*then[:3], *first, *then]))
    lost, said = after_restore(log)
    assert "database lost: 5" in said
    assert {change["id"] for change in lost} == {str(id) for id in mails}
    assert [change["first_at"] for change in lost] == sorted(change["first_at"] for change in lost)
    assert {change["now"] for change in lost} == {"sent"} and all(
        change["order_known"] is False for change in lost
    )


def test_an_email_that_was_given_up_since_is_held_though_it_is_not_due_yet(shipped):
    later = read_database_time() + dt.timedelta(hours=1)
    order = new_id()
    mails = [make_mail(order_id=order, order_version=1, next_attempt_at=later) for _ in range(3)]
    given_up, overtaken, other = mails
    services.give_up(ids=[given_up.id])
    EmailNotification.objects.filter(id=overtaken.id).update(next_attempt_at=Now())
    settled(claim_one(), Verdict.OVERTAKEN, text="overtaken by order.cancelled")
    # As the moment found them.
    restore_to_now()
    EmailNotification.objects.update(status="pending", ended_by="", last_error="", next_attempt_at=later)
    _, said = after_restore(shipped)
    assert "person: 1" in said
    assert states() == {given_up.id: "dead_lettered", overtaken.id: "pending", other.id: "pending"}
    held = EmailNotification.objects.get(id=given_up.id)
    assert "it was given up since" in held.last_error
    assert "person: 0" in after_restore(shipped)[1]


def test_an_email_that_was_rendered_again_since_is_held_whatever_its_state(tmp_path):
    """The database has the original again, and its copy only in the logs."""
    order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    originals = [
        make_mail(order_id=order.id, status=status) for status in ("dead_lettered", "failed", "sent")
    ]
    restore_to_now()
    copies = {new_id(): mail for mail in originals}
    path = tmp_path / "worker.log"
    path.write_text(
        "".join(
            line(
                "notification changed", notification_id=str(id), was="", now="pending", resend_of=str(mail.id)
            )
            for id, mail in copies.items()
        )
        + "".join(sent(id) for id in copies)
    )
    lost, _ = after_restore(path)
    assert [states()[mail.id] for mail in originals] == ["dead_lettered", "dead_lettered", "sent"]
    held = EmailNotification.objects.filter(last_error__contains="a copy was made since")
    assert set(held.values_list("id", flat=True)) == {mail.id for mail in originals[:2]}
    assert {change["resend_of"] for change in lost if change["kind"] == "e-mail"} == {
        str(mail.id) for mail in originals
    }
    with transaction.atomic():
        done, refusals = render_again(ids=[originals[0].id])
    assert done == [] and "resend it or mark it as sent" in refusals[0].reason
    after_restore(path)  # a second run changes nothing
    assert len(EmailNotification.objects.get(id=originals[0].id).errors) == 1
