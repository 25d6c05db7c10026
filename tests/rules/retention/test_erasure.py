"""“Forget me”, over live rows, detached tables and archives."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from urllib.parse import quote

import pytest
from axes.models import AccessAttempt
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now

from runtime.audit import Actor
from tests.kit import events
from tests.kit.acts import acts
from tests.kit.admin import ORDERS
from tests.kit.api import Api, make_token, order_body
from tests.kit.deaths import run_until_killed
from tests.kit.events import handle, received
from tests.kit.mails import statuses
from tests.kit.months import Steps, files, fill, make_partition, roll, states
from tests.kit.orders import cancel_order, pay_order, place_order, refund_order
from tests.kit.people import (
    ADDRESS,
    BOB,
    bought,
    dead_event,
    erase,
    everywhere,
    grep,
    grep_cold_files,
    keep_answer,
)
from tests.kit.waiting import replace_time
from tests.kit.words import (
    ERASED,
    ERASED_ADDRESS,
    BulkJob,
    DetachedPartition,
    DomainEvent,
    EmailNotification,
    Erasure,
    IdempotencyKey,
    InboundDeadLetter,
    Manifest,
    Order,
    Status,
    address_hash,
    archive,
    claim,
    erasure,
    id_floor,
    list_partitions,
    new_id,
    person_export,
    rollover,
    run_batch,
)
from tests.kit.words import person_jobs as jobs

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder", "orders_of_last_year"),
]


def once(do: Callable[[], object]) -> Callable[[], None]:
    """Return a function whose first call does this."""
    left = [do]

    def call() -> None:
        if left:
            left.pop()()

    return call


class TestDeadEvents:
    """Another service's event that names the person, kept as a dead letter and published to `<topic>.dlt`."""

    def test_are_erased_with_their_copies_in_live_rows_and_in_detached_days(self):
        order = bought()
        by_id = json.dumps({"data": {"orderId": str(order.id), "holder": "Anna Example"}})
        by_address = json.dumps({"data": {"payer": ADDRESS.upper()}})
        bobs = json.dumps({"data": {"payer": BOB}})
        days = [make_partition(DomainEvent, back=back) for back in (12, 11)]
        for day in days:
            for number, text in enumerate((by_id, by_address, bobs)):
                dead_event(text, day.since + dt.timedelta(hours=number + 1))
        DomainEvent.objects.update(published_at=Now())
        rollover.rollover(report=Steps())
        assert [states(DomainEvent)[day.name] for day in days] == ["detached"] * 2
        for text in (by_id, by_address, bobs):
            dead_event(text)
        assert {day.name for day in days} < set(grep(ADDRESS))
        call_command("privacy", "erase", "--email", ADDRESS)
        assert grep(ADDRESS) == [] and grep("Anna Example") == []
        assert {day.name for day in days} < set(grep(BOB))

    def test_are_erased_of_a_person_without_an_order(self):
        dead_event(json.dumps({"data": {"payer": ADDRESS}}))
        call_command("privacy", "erase", "--email", ADDRESS)
        assert grep(ADDRESS) == []

    def test_an_erased_dead_event_is_not_replayed(self):
        dead_event(json.dumps({"data": {"payer": ADDRESS}}))
        call_command("privacy", "erase", "--email", ADDRESS)
        assert InboundDeadLetter.objects.unresolved().count() == 0


class TestErase:
    def test_leaves_the_address_in_no_table_no_archive_and_no_log(self, tmp_path, capfd, caplog):
        everywhere()
        assert grep(ADDRESS) and grep_cold_files(tmp_path, ADDRESS)
        caplog.clear()
        call_command("privacy", "erase", "--email", ADDRESS, "--now")
        assert grep(ADDRESS) == [] and grep("Anna Example") == []
        assert grep_cold_files(tmp_path, ADDRESS) == [] and grep_cold_files(tmp_path, "Anna Example") == []
        out, err = capfd.readouterr()
        assert ADDRESS.lower() not in (out + err + caplog.text).lower()

    def test_keeps_what_an_auditor_counts(self, tmp_path):
        order = everywhere()
        before = list_partitions(using="default")
        mails = EmailNotification.objects.count()
        call_command("privacy", "erase", "--email", ADDRESS, "--now")
        assert EmailNotification.objects.count() == mails
        mail = EmailNotification.objects.filter(order_id=order.id).first()
        assert (mail.recipient_email, mail.subject, mail.body, mail.to_name) == (
            ERASED_ADDRESS,
            "[erased]",
            "",
            "",
        )
        assert mail.status == "sent" and mail.sent_at and mail.event_type
        assert mail.errors == [{"at": "2026-01-01", "code": "550", "text": "[erased]"}]
        order.refresh_from_db()
        assert (order.email, order.name, order.total_amount) == (ERASED_ADDRESS, "", 500)
        after = list_partitions(using="default")
        assert [(line["partition"], line["state"]) for line in before] == [
            (line["partition"], line["state"]) for line in after
        ]

    def test_reaches_an_archive_that_is_older_than_a_column(self, tmp_path):
        everywhere()
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE email_notifications ADD COLUMN nickname text")
            cursor.execute("UPDATE email_notifications SET nickname = 'Anna Example'")
        rules = EmailNotification.retention
        later = dataclasses.replace(
            rules,
            personal=f"({rules.personal} OR nickname IS NOT NULL)",
            erased={**rules.erased, "nickname": "NULL"},
        )
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(EmailNotification, "retention", later)
                call_command("privacy", "erase", "--email", ADDRESS, "--now")
            assert grep(ADDRESS) == [] and grep_cold_files(tmp_path, ADDRESS) == []
            assert "email_notifications" not in grep("Anna Example")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE email_notifications DROP COLUMN nickname")

    def test_is_logged_with_the_hash_and_without_the_address(self, caplog):
        order = bought(done=False)
        created = [str(line.msg) for line in caplog.records if "'now': 'pending'" in str(line.msg)]
        assert len(created) == 2 and all("'was': ''" in line for line in created)
        caplog.clear()
        call_command("privacy", "erase", "--email", ADDRESS, "--force")
        lines = [str(line.msg) for line in caplog.records]
        assert any("person erased" in line and address_hash(ADDRESS) in line for line in lines)
        withdrawn = [line for line in lines if "'now': 'discarded'" in line]
        assert len(withdrawn) == 2 and all(str(order.id) in line for line in withdrawn)
        assert ADDRESS.lower() not in caplog.text.lower()

    def test_touches_nobody_else(self, tmp_path):
        everywhere()
        bob = bought(BOB)
        call_command("privacy", "erase", "--email", ADDRESS, "--now")
        bob.refresh_from_db()
        assert bob.email == BOB
        assert set(grep(BOB)) >= {"orders", "idempotency_keys"}
        assert grep_cold_files(tmp_path, BOB)

    def test_rewritten_archives_have_new_checksums_and_the_old_files_are_gone(self, tmp_path):
        everywhere()
        before = {record.name: record.manifest["file_sha256"] for record in DetachedPartition.objects.all()}
        names = files(tmp_path)
        call_command("privacy", "erase", "--email", ADDRESS, "--now")
        for record in DetachedPartition.objects.all():
            if record.table == "email_notifications":
                assert record.manifest["file_sha256"] != before[record.name]
                archive.verify(manifest=Manifest.of(record))
        assert not set(files(tmp_path)) & set(names)
        assert len(files(tmp_path)) == len(names)

    def test_without_now_the_report_names_the_archives_and_next_month_rewrites_them(self, tmp_path, capsys):
        everywhere()
        call_command("privacy", "erase", "--email", ADDRESS)
        waiting = json.loads(capsys.readouterr().out)["cold_files_to_rewrite"]
        assert len(waiting) == 2
        assert grep(ADDRESS) == []
        rollover.rollover(report=Steps())  # the detached table's at once, it is about to go
        assert len(Erasure.objects.get().cold_files) == 1
        assert grep_cold_files(tmp_path, ADDRESS)
        Erasure.objects.update(requested_at=Now() - dt.timedelta(days=31))
        rollover.rollover(report=Steps())
        assert grep_cold_files(tmp_path, ADDRESS) == []
        assert Erasure.objects.get().cold_files == []

    def test_refuses_while_an_order_is_in_flight_and_changes_nothing(self):
        place_order(user_id=uuid.uuid4(), email=ADDRESS, total_amount=500)
        with pytest.raises(
            CommandError, match=r"^1 order is unfinished: 0.* \(in the command: --force\)"
        ) as caught:
            call_command("privacy", "erase", "--email", ADDRESS)
        assert caught.value.returncode == 1
        assert Order.objects.get().email == ADDRESS and not Erasure.objects.exists()

    @pytest.mark.parametrize(("answer", "address"), [("yes", ERASED_ADDRESS), ("", ADDRESS), ("no", ADDRESS)])
    def test_asks_once_on_a_terminal(self, monkeypatch, answer, address):
        bought()
        questions: list[str] = []
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or answer)
        refused = (
            pytest.raises(CommandError, match="Nothing was erased") if answer != "yes" else nullcontext()
        )
        with refused:
            call_command("privacy", "erase", "--email", ADDRESS)
        assert Order.objects.get().email == address and BulkJob.objects.exists() is (answer == "yes")
        assert len(questions) == 1 and ADDRESS in questions[0] and "cannot be undone" in questions[0]

    def test_refuses_while_an_email_is_not_sent_and_changes_nothing(self):
        bought(done=False)
        with pytest.raises(CommandError, match=r"e-mails are not sent yet: order\.\w+ of "):
            call_command("privacy", "erase", "--email", ADDRESS)
        assert Order.objects.get().email == ADDRESS

    def test_forced_gives_unsent_mails_up_and_later_ones_are_suppressed(self):
        order = bought(done=False)
        call_command("privacy", "erase", "--email", ADDRESS, "--force")
        assert statuses() == {"discarded": 2}
        refund_order(order_id=order.id)
        assert statuses() == {"discarded": 2, "suppressed": 1}
        assert grep(ADDRESS) == []
        assert claim(limit=10) == []

    def test_a_mail_being_sent_is_erased_when_its_outcome_is_known(self, settings, monkeypatch):
        order = bought(done=False)
        mail, *_ = claim(limit=1)

        def settle_meanwhile(_):
            EmailNotification.objects.filter(id=mail.id, status="processing").update(
                status="failed", claimed_at=None, claim_token=None, last_error=f"451 {ADDRESS}"
            )

        replace_time(monkeypatch, erasure, sleep=settle_meanwhile)
        call_command("privacy", "erase", "--email", ADDRESS, "--force")
        assert grep(ADDRESS) == []
        assert statuses() == {"discarded": 2}
        assert order.id

    def test_a_mail_that_goes_on_being_sent_is_erased_by_a_later_try(self, settings, fast):
        settings.EMAIL_READ_TIMEOUT, settings.EMAIL_CONNECT_TIMEOUT = -5, 0
        fast.jobs()
        bought(done=False)
        claim(limit=1)
        job = jobs.start_erasure(email=ADDRESS, force=True, by=Actor("x"))
        for _ in range(2):
            assert run_batch()
            job.refresh_from_db()
            assert (job.state, job.error) == ("running", "1 e-mails are being sent now.")
        EmailNotification.objects.filter(status=Status.PROCESSING).update(
            status="pending", claimed_at=None, claim_token=None
        )
        assert run_batch()
        job.refresh_from_db()
        assert job.state == "done" and grep(ADDRESS) == []

    def test_a_second_pass_catches_an_order_placed_meanwhile(self):
        bought()
        later = once(bought)
        erasure.erase_person(email=ADDRESS, report=lambda step, **_: later() if step == "erased" else None)
        assert Order.objects.count() == 2 and grep(ADDRESS) == []

    def test_refuses_an_order_that_is_paid_while_it_ends_and_leaves_its_email_to_be_sent(self, monkeypatch):
        first = bought()
        erase_texts, persons = erasure._erase_texts, []

        def then_take_another_order(person):
            counts = erase_texts(person)
            persons.append(person)
            if len(persons) == 2:  # the last look at all stored answers, which may take minutes
                pay_order(order_id=place_order(user_id=uuid.uuid4(), email=ADDRESS, total_amount=500).id)
            return counts

        monkeypatch.setattr(erasure, "_erase_texts", then_take_another_order)
        with pytest.raises(CommandError, match="1 order is unfinished: "):
            call_command("privacy", "erase", "--email", ADDRESS)
        first.refresh_from_db()
        assert first.email == ERASED_ADDRESS and statuses() == {"sent": 2, "pending": 1}
        assert Order.objects.get(status="paid").email == ADDRESS

    def test_erases_what_was_stored_after_its_first_look_at_the_answers(self):
        order = bought()

        def answer() -> None:
            named = {"id": str(order.id), "email": BOB, "name": "Anna Example"}
            keep_answer("k", body=named, order_id=order.id)

        later = once(answer)
        # Without detached tables, the first rows that are erased are those of answers and texts.
        erasure.erase_person(email=ADDRESS, report=lambda step, **_: later() if step == "erased" else None)
        assert IdempotencyKey.objects.filter(key="k").exists()
        assert grep(ADDRESS) == [] and grep("Anna Example") == []

    def test_may_be_repeated_and_the_hash_alone_says_who(self):
        bought()
        call_command("privacy", "erase", "--email", ADDRESS)
        call_command("privacy", "erase", "--email", f" {ADDRESS.upper()}")
        erasure = Erasure.objects.get()
        assert erasure.address_hash == address_hash(ADDRESS) and erasure.finished_at
        assert erasure.counts["orders"] == 1

    def test_of_a_stranger_changes_nothing(self, capsys):
        bought(BOB)
        call_command("privacy", "erase", "--email", "nobody@example.com")
        assert json.loads(capsys.readouterr().out) == {"changed": 0, "cold_files_to_rewrite": []}
        assert Erasure.objects.get().address_hash == address_hash("nobody@example.com")

    def test_a_repeated_request_gets_the_ids_alone_and_other_answers_stay_byte_for_byte(self):
        order, bob = bought(), bought(BOB)
        bobs = IdempotencyKey.objects.filter(answer_body__contains=str(bob.id))
        before = bobs.get().answer_body
        call_command("privacy", "erase", "--email", ADDRESS)
        answer = IdempotencyKey.objects.get(answer_body__contains=str(order.id)).answer_body
        assert json.loads(answer) == {"id": str(order.id)}
        assert bobs.get().answer_body == before

    def test_leaves_nothing_of_a_key_that_has_the_address_and_a_repeat_stays_a_repeat(self):
        api, body = Api(make_token()), order_body(email=ADDRESS, name="Anna Example")
        placed = api.post("/api/v1/orders", body, key=f"order-of-{ADDRESS}")
        call_command("privacy", "erase", "--email", ADDRESS, "--force")
        assert grep(ADDRESS) == []
        again = api.post("/api/v1/orders", body, key=f"order-of-{ADDRESS}")
        ids = {name: placed.json()[name] for name in ("id", "user_id")}
        assert (again.status_code, again.json()) == (201, ids)
        assert again.headers["Idempotency-Replayed"] == "true" and Order.objects.count() == 1

    def test_leaves_no_name_in_an_item(self):
        items = [
            {"sku": f"S-{n}", "name": name, "quantity": n, "unit_amount": 250}
            for n, name in ((1, "Ring, engraved ‘Anna Example’"), (2, "Tea"))
        ]
        api = Api(make_token())
        path = api.place(email=ADDRESS, total_amount=500, items=items)
        bob = api.place(email=BOB, total_amount=500, items=items)
        call_command("privacy", "erase", "--email", ADDRESS, "--force")
        assert api.get(path).json()["items"] == [item | {"name": "[erased]"} for item in items]
        assert api.get(bob).json()["items"] == items

    def test_leaves_no_login_that_failed_with_the_address(self, client):
        get_user_model().objects.create_user("ann", password="right horse", is_staff=True)
        for name in (ADDRESS, f" {ADDRESS.upper()}", BOB, "ann"):
            search = f"/admin/login/?next={quote(f'/admin/search/?q={quote(ADDRESS)}')}"
            client.post(search, {"username": name, "password": "wrong"})
        assert AccessAttempt.objects.count() == 4
        call_command("privacy", "erase", "--email", ADDRESS)
        assert sorted(AccessAttempt.objects.values_list("username", flat=True)) == ["ann", BOB]
        assert grep(ADDRESS) == grep(quote(ADDRESS)) == []

    @pytest.mark.parametrize("is_warm", [False, True])
    def test_leaves_no_reason_of_a_copy_to_a_colleague(self, admin_client, is_warm):
        order = bought()
        mail = EmailNotification.objects.filter(order_id=order.id).first()
        form = {"recipient_email": "colleague@example.com", "reason": "Anna Example called"}
        admin_client.post(f"{ORDERS}copies/{mail.id}/", form)
        copy = EmailNotification.objects.get(resend_of=mail.id)
        if is_warm:
            old = make_partition(EmailNotification, back=4)
            fill(old, 1, order_id=order.id, recipient_email=copy.recipient_email)
            copy.delete()
            roll()
        said = acts().filter(reason__contains="Anna Example")
        assert said.count() == 1
        call_command("privacy", "erase", "--email", ADDRESS, "--force")
        assert said.count() == 0

    def test_an_events_link_is_erased_and_its_numbers_stay(self):
        order = bought()
        call_command("privacy", "erase", "--email", ADDRESS)
        event = DomainEvent.objects.get(aggregate_id=order.id, event_type="order.order.completed.v1")
        assert "trackingUrl" not in event.payload and event.payload["totalAmount"] == 500

    def test_an_erased_cancelled_order_can_still_be_refunded(self):
        order = place_order(user_id=uuid.uuid4(), email=ADDRESS, total_amount=500)
        pay_order(order_id=order.id)
        cancel_order(order_id=order.id, reason="Anna Example changed her mind")
        EmailNotification.objects.update(status="sent", sent_at=Now())
        call_command("privacy", "erase", "--email", ADDRESS)
        refund_order(order_id=order.id)
        assert grep("Anna Example") == []


DYING = """
import os, signal, sys
import django
django.setup()
from orders.privacy import erasure

point = sys.argv[1]
steps = []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def report(step, **facts):
    steps.append(step)
    if str(len(steps)) == point:
        die()

if not point.isdigit():
    real = getattr(erasure, point)
    setattr(erasure, point, lambda *args, **options: (real(*args, **options), die()))
erasure.erase_person(email=sys.argv[2], report=report)
erasure.rewrite_cold_files(report=report)
print(*steps)
"""
#: Functions right after which an erasure is killed, and the number of the step at whose report it is.
POINTS = [
    "erase_reasons",
    "erase_texts_with_address",
    "erase_rows",
    "erase_copies",
    "erase_chosen_texts",
    "erase_texts",
    "erase_from_cold_file",
    *map(str, range(1, 9)),
]


@pytest.mark.parametrize("point", POINTS)
def test_an_erasure_killed_at_any_point_is_ended_by_the_next(point, tmp_path):
    order = everywhere()
    text = json.dumps({"data": {"orderId": str(order.id), "holder": "Anna Example"}})
    day = make_partition(DomainEvent, back=12)
    dead_event(text, day.since + dt.timedelta(hours=1))
    link = DomainEvent.objects.get(aggregate_id=order.id, event_type="order.order.completed.v1")
    when = day.since + dt.timedelta(hours=2)
    link.id, link.created_at = uuid.UUID(int=id_floor(when).int | (new_id().int & ((1 << 76) - 1))), when
    link.save(force_insert=True)
    DomainEvent.objects.update(published_at=Now())
    rollover.rollover(report=Steps())
    assert states(DomainEvent)[day.name] == "detached"
    dead_event(text)
    by_id = {"id": str(order.id), "email": BOB, "name": "Anna Example"}  # before its address was corrected
    keep_answer("k", body=by_id, order_id=order.id)
    run_until_killed(DYING, point, ADDRESS, tmp_path=tmp_path)
    call_command("privacy", "erase", "--email", ADDRESS, "--now")
    for left in (ADDRESS, "Anna Example", "track.example"):
        assert grep(left) == [] and grep_cold_files(tmp_path, left) == []
    assert grep(BOB) and grep_cold_files(tmp_path, BOB)


DYING_REWRITE = """
import os, signal, sys
import django
django.setup()
from orders.privacy import erasure
from retention.cold_files import archive, restore
from retention.models import DetachedPartition

owner = {"restore": restore, "drop_restored": restore, "save": DetachedPartition}.get(sys.argv[1], archive)
real, left = getattr(owner, sys.argv[1]), [int(sys.argv[2])]

def dying(*args, **options):
    result = real(*args, **options)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, sys.argv[1], dying)
erasure.rewrite_cold_files(report=lambda step, **facts: None)
"""


@pytest.mark.parametrize(
    ("step", "call"),
    [("restore", 1), ("write_cold_file", 1), ("save", 1), ("drop_restored", 2), ("delete_unrecorded", 1)],
)
def test_a_rewrite_killed_right_after_this_step_leaves_no_old_file_to_the_next(step, call, tmp_path):
    everywhere()
    call_command("privacy", "erase", "--email", ADDRESS)
    run_until_killed(DYING_REWRITE, step, str(call), tmp_path=tmp_path)
    erasure.rewrite_cold_files(report=Steps())
    assert Erasure.objects.get().cold_files == []
    assert grep_cold_files(tmp_path, ADDRESS) == [] and len(files(tmp_path)) == 4
    assert not [name for name in connection.introspection.table_names() if name.endswith("_rewritten")]


OHARA = "Ann.O'Hara+tea@example.com"


def test_an_erasure_reaches_the_order_of_another_system_its_mails_and_its_dead_letters(settings):
    settings.ORDER_SOURCES = [events.SHOP]
    id = events.new_id()
    events.tell("completed", id, 3, email=OHARA, name="Ann O'Hara")
    assert events.tell("paid", id, 2, email=OHARA, name="Ann O'Hara", totalAmount=-1) == "dead"
    EmailNotification.objects.update(status="sent", sent_at=Now())
    assert {"orders", "email_notifications", "inbound_dead_letters"} <= set(grep("o'hara"))
    erase(OHARA, force=True)
    assert grep("o'hara") == [] and grep("ann.o") == []
    assert Order.objects.get(id=id).email == ERASED_ADDRESS
    assert "originalEvent" not in DomainEvent.objects.get(event_type__endswith=".dlt").payload


@pytest.mark.parametrize("address", [OHARA, "zoë@example.com", "ÄNNE@example.com"])
@pytest.mark.parametrize("escaped", ["'+@ëÄ", "'", "@ëÄ"])
def test_a_dead_letter_is_found_when_its_json_escapes_the_address(settings, address, escaped):
    settings.ORDER_SOURCES = [events.SHOP]
    event = events.told("paid", events.new_id(), 2, email=address, totalAmount=-1)
    text = json.dumps(event, ensure_ascii=False)
    for character in escaped:
        text = text.replace(character, f"\\u{ord(character):04x}")
    assert handle(received(event["eventType"], text.encode())) == "dead"
    other = events.told("paid", events.new_id(), 2, email="bob@example.com", totalAmount=-1)
    events.give(other)
    assert len(person_export.export_person(email=address, report=Steps())["inbound_dead_letters"]) == 1
    erase(address, force=True)
    envelopes = list(InboundDeadLetter.objects.order_by("id").values_list("envelope", flat=True))
    assert envelopes[0] == ERASED and "bob@example.com" in envelopes[1]
    notes = list(DomainEvent.objects.order_by("position"))
    assert ["originalEvent" in note.payload for note in notes] == [False, True]
