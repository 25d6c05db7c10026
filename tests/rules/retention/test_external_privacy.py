"""What is kept of another system's events is found and erased with the person, however it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db.models.functions import Now

from tests.kit.events import handle, received
from tests.kit.external import SHOP, give, new_id, tell, told
from tests.kit.months import Steps
from tests.kit.words import (
    ERASED,
    ERASED_ADDRESS,
    EmailNotification,
    InboundDeadLetter,
    Order,
    OutboxEvent,
    erasure,
    person_export,
)
from tests.rules.retention.test_privacy import grep

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ADDRESS = "Ann.O'Hara+tea@example.com"


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]


def erase(email: str) -> None:
    erasure.erase_person(email=email, report=Steps(), force=True)


def test_an_erasure_reaches_the_order_its_mails_and_its_dead_letters():
    id = new_id()
    tell("completed", id, 3, email=ADDRESS, name="Ann O'Hara")
    assert tell("paid", id, 2, email=ADDRESS, name="Ann O'Hara", totalAmount=0) == "dead"
    EmailNotification.objects.update(status="sent", sent_at=Now())
    assert {"orders", "email_notifications", "dead_events"} <= set(grep("o'hara"))
    erase(ADDRESS)
    assert grep("o'hara") == [] and grep("ann.o") == []
    assert Order.objects.get(id=id).email == ERASED_ADDRESS
    assert "originalEvent" not in OutboxEvent.objects.get(event_type__endswith=".dlt").payload


@pytest.mark.parametrize("address", [ADDRESS, "zoë@example.com", "ÄNNE@example.com"])
@pytest.mark.parametrize("escaped", ["'+@ëÄ", "'", "@ëÄ"])
def test_a_dead_letter_is_found_when_its_json_escapes_the_address(address, escaped):
    event = told("paid", new_id(), 2, email=address, totalAmount=0)
    text = json.dumps(event, ensure_ascii=False)
    for character in escaped:
        text = text.replace(character, f"\\u{ord(character):04x}")
    assert handle(received(event["eventType"], text.encode())) == "dead"
    other = told("paid", new_id(), 2, email="bob@example.com", totalAmount=0)
    give(other)
    assert len(person_export.export_person(email=address, report=Steps())["dead_events"]) == 1
    erase(address)
    envelopes = list(InboundDeadLetter.objects.order_by("id").values_list("envelope", flat=True))
    assert envelopes[0] == ERASED and "bob@example.com" in envelopes[1]
    notes = list(OutboxEvent.objects.order_by("position"))
    assert ["originalEvent" in note.payload for note in notes] == [False, True]
