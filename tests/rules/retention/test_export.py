"""“What did you send me?”, over live rows, detached tables and archives."""

from __future__ import annotations

import json

import pytest
from django.core.management import call_command

from tests.kit.months import Steps
from tests.kit.people import ADDRESS, BOB, PAYMENT, bought, dead_event, everywhere
from tests.kit.words import (
    DetachedPartition,
    address_hash,
    export_person,
    key_hash,
)

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder", "orders_of_last_year"),
]


class TestExport:
    def test_collects_orders_mails_and_events_from_everywhere(self, capsys):
        order = everywhere()
        bought(BOB)
        call_command("privacy", "export", "--email", ADDRESS.lower())
        document = json.loads(capsys.readouterr().out)
        assert [order["id"] for order in document["orders"]] == [str(order.id)]
        places = {mail["stored_in"].partition(" ")[0] for mail in document["email_notifications"]}
        assert len(document["email_notifications"]) == 2 + 3 + 3
        assert len(places) == 3 and "cold" in places and "email_notifications" in places
        assert len(document["outbox_events"]) == 3
        assert BOB not in json.dumps(document)

    def test_is_logged_with_the_hash_and_without_the_address(self, caplog):
        bought()
        caplog.clear()
        call_command("privacy", "export", "--email", ADDRESS)
        (line,) = [str(line.msg) for line in caplog.records if "person exported" in str(line.msg)]
        assert address_hash(ADDRESS) in line and ADDRESS.lower() not in caplog.text.lower()

    def test_of_a_stranger_is_empty(self, capsys):
        bought(BOB)
        call_command("privacy", "export", "--email", "nobody@example.com")
        document = json.loads(capsys.readouterr().out)
        assert not document["orders"] and not document["email_notifications"]

    def test_finds_an_address_with_wildcards_in_it_literally(self, capsys):
        bought("a_b@example.com")
        bought("axb@example.com")
        call_command("privacy", "export", "--email", "a_b@example.com")
        assert len(json.loads(capsys.readouterr().out)["orders"]) == 1

    def test_has_stored_answers_and_dead_events_that_name_the_person(self, capsys):
        order = bought()
        dead_event(json.dumps({"data": {"payer": ADDRESS.upper()}}))
        dead_event(json.dumps({"data": {"payer": BOB}}))
        call_command("privacy", "export", "--email", ADDRESS)
        document = json.loads(capsys.readouterr().out)
        assert [row["key"] for row in document["idempotency_keys"]] == [key_hash(f"{ADDRESS}-{order.id}")]
        assert [row["topic"] for row in document["inbound_dead_letters"]] == [PAYMENT]
        assert BOB not in json.dumps(document)


class TestArchivesOfAnExport:
    @pytest.mark.parametrize("content", [b"", b"damaged"])
    def test_are_named_if_they_cannot_be_read(self, tmp_path, content):
        order = everywhere()
        assert export_person(email=order.email, report=Steps())["cold_files_left_out"] == []
        dropped, kept = DetachedPartition.objects.order_by("name")
        assert dropped.dropped_at and not kept.dropped_at
        for path in (tmp_path / "archive").rglob("*.zst"):
            if content:
                path.write_bytes(content + path.read_bytes()[7:])
            else:
                path.unlink()
        document = export_person(email=order.email, report=Steps())
        assert [part["cold_file"] for part in document["cold_files_left_out"]] == [dropped.name]
        assert len(document["email_notifications"]) == 2 + 3
