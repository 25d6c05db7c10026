"""The persons of orders that other systems report: without an address, and after an erasure."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from orders.privacy.persons import NoPerson
from tests.kit.admin import ORDERS
from tests.kit.api import Api, make_token
from tests.kit.events import SHOP, USER, emails, give, new_id, tell, told, without_address
from tests.kit.months import Steps
from tests.kit.people import ANN, BOB, erase, export, grep
from tests.kit.profiles import save_profile
from tests.kit.words import (
    ERASED_ADDRESS,
    EmailNotification,
    Erasure,
    InboundDeadLetter,
    Order,
    claim,
    erase_person,
    our_id,
)

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
OTHER_USER = "9f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11"
DEAD = ("dead_lettered", "")


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP, "shop-b"]
    settings.NOTIFY_ON = ["order.placed", "order.paid", "order.completed"]
    settings.FAST_PATH = False


class TestWithoutAddress:
    def test_an_order_without_an_address_is_exported_and_erased_by_its_user(self):
        lost = without_address(2, name="Ann Example")
        tell("paid", addressed := new_id(), 1, email=ANN, userId=USER, name="Ann Example")
        other = without_address(1, userId=OTHER_USER, name="Bob Example")
        document = export(ANN)
        assert {str(row["id"]) for row in document["orders"]} == {str(lost.id), addressed}
        assert len(document["email_notifications"]) == 3
        assert "Bob Example" not in json.dumps(document, default=str)
        with pytest.raises(Exception, match="unfinished"):
            erase(ANN)
        erase(ANN, force=True)
        lost.refresh_from_db()
        assert (lost.email, lost.name) == (ERASED_ADDRESS, "")
        assert emails(lost) == dict.fromkeys(("order.placed", "order.paid"), ("discarded", ERASED_ADDRESS))
        other.refresh_from_db()
        assert (other.email, other.name, emails(other)) == ("", "Bob Example", {"order.placed": DEAD})
        assert grep("ann example") == []

    def test_an_erased_order_without_an_address_stays_erased(self):
        lost = without_address(1)
        tell("completed", new_id(), 1, email=ANN, userId=USER)
        erase(ANN, force=True)
        tell("paid", str(lost.id), 2, email=BOB, name="Ann Example")
        lost.refresh_from_db()
        assert (lost.email, lost.name, lost.status) == (ERASED_ADDRESS, "", "paid")
        assert emails(lost)["order.paid"] == ("suppressed", ERASED_ADDRESS)

    def test_a_user_of_several_people_leads_to_no_order(self):
        """Some shops give all guests one user."""
        lost = without_address(1, name="Carl Example")
        tell("completed", new_id(), 1, email=ANN, userId=USER)
        tell("completed", new_id(), 1, email=BOB, userId=USER)
        assert len(export(ANN)["orders"]) == 1
        erase(ANN, force=True)
        lost.refresh_from_db()
        assert (lost.email, lost.name) == ("", "Carl Example")
        erase(BOB, force=True)  # now all of its addresses are erased, and only Bob's led there
        lost.refresh_from_db()
        assert lost.email == ERASED_ADDRESS

    def test_a_user_of_another_shop_is_another_one(self):
        lost = without_address(1)
        tell("completed", new_id(), 1, email=ANN, userId=USER, source="shop-b")
        assert len(export(ANN)["orders"]) == 1
        erase(ANN, force=True)
        assert Order.objects.get(id=lost.id).email == ""

    def test_no_address_is_no_person(self, admin_client):
        order = without_address(1)
        for do in (export, erase):
            with pytest.raises(NoPerson, match="Give its address"):
                do("")
        with pytest.raises(CommandError):
            call_command("privacy", "erase", "--email", "")
        for action in ("export_person", "erase_person"):
            answer = admin_client.post(
                ORDERS, {"action": action, "_selected_action": [str(order.id)]}, follow=True
            )
            assert "order has no address" in answer.content.decode()
        assert Order.objects.get(id=order.id).email == ""

    @pytest.mark.parametrize("is_corrected", [True, False])
    def test_a_shop_copy_is_exported_and_erased_with_its_customer(self, is_corrected):
        save_profile(SHOP, copy_to="office@shop.example")
        order = without_address(1, name="Ann Example", items=[])
        if is_corrected:
            tell("paid", str(order.id), 2, email=ANN, name="Ann Example", userId=USER)
        else:
            tell("placed", new_id(), 1, email=ANN, userId=USER)
        EmailNotification.objects.filter(status="pending").update(status="sent", sent_at=Now())
        assert len(export(ANN)["email_notifications"]) == 4
        erase(ANN, force=True)
        assert grep(ANN) == [] and grep("ann example") == []

    def test_the_lines_of_fallbacks_have_nothing_personal(self):
        secret = "ann.secret"
        without_address(1, email=f"{secret}@", name=[secret], locale=f"{secret}!", userId={secret: 1})
        assert secret not in json.dumps(Order.objects.get().warnings)


class TestALateEventOfAnErasedPerson:
    def test_is_stored_without_name_and_address_and_sends_nothing(self, caplog):
        tell("completed", new_id(), 1, email=ANN)
        erase(ANN, force=True)
        caplog.clear()
        caplog.set_level(logging.DEBUG)
        event = told("paid", id := new_id(), 2, email=ANN.upper(), name="Ann Example")
        answer = Api(make_token()).post("/api/v1/events", event).json()
        assert (answer["result"], answer["email"], answer["reason"]) == ("processed", "none", "erased")
        order = Order.objects.get(id=id)
        assert (order.email, order.name, order.status) == (ERASED_ADDRESS, "", "paid")
        assert emails(order) == {"order.paid": ("suppressed", ERASED_ADDRESS)}
        assert claim(limit=1) == [] and grep(ANN) == [] and grep("ann example") == []
        assert ANN not in caplog.text.lower()
        tell("completed", id, 3, email=ANN, name="Ann Example")
        assert grep(ANN) == [] and Order.objects.get(id=id).status == "completed"

    def test_that_gives_a_known_order_its_address_erases_the_order_and_what_it_owed(self):
        lost = without_address(2, name="Ann Example")
        erase(ANN)
        assert tell("completed", str(lost.id), 3, email=ANN, name="Ann Example") == "done"
        lost.refresh_from_db()
        assert (lost.email, lost.name, lost.status) == (ERASED_ADDRESS, "", "completed")
        assert emails(lost) == {
            **dict.fromkeys(["order.placed", "order.paid"], ("discarded", ERASED_ADDRESS)),
            "order.completed": ("suppressed", ERASED_ADDRESS),
        }
        assert grep(ANN) == [] and grep("ann example") == []

    def test_is_recognised_although_nothing_was_stored_at_the_erasure(self):
        report = erase_person(email=ANN, report=Steps())
        assert report.counts == {} and Erasure.objects.count() == 1
        assert tell("paid", id := new_id(), 1, email=ANN) == "done"
        assert Order.objects.get(id=id).email == ERASED_ADDRESS

    def test_of_an_order_placed_after_the_erasure_is_a_customers(self):
        erase(ANN)
        tell("paid", id := new_id(), 1, email=ANN, placedAt=dt.datetime.now(dt.UTC).isoformat())
        assert Order.objects.get(id=id).email == ANN

    def test_of_an_order_placed_before_the_newest_erasure_is_an_erased_ones(self):
        erase(ANN)
        Erasure.objects.update(requested_at=Now() - dt.timedelta(days=40))
        between = (dt.datetime.now(dt.UTC) - dt.timedelta(days=1)).isoformat()
        tell("completed", first := new_id(), 1, email=ANN, placedAt=between)
        assert Order.objects.get(id=first).email == ANN
        erase(ANN, force=True)
        tell("completed", late := new_id(), 1, email=ANN, placedAt=between)
        assert Order.objects.get(id=late).email == ERASED_ADDRESS
        (erasure,) = Erasure.objects.all()
        age = dt.datetime.now(dt.UTC) - erasure.requested_at
        assert age > dt.timedelta(days=39), "the cold files are rewritten a month after the first request"

    @pytest.mark.parametrize("placed_at", ["yesterday", None, "2999-01-01T00:00:00Z"])
    def test_without_a_usable_time_is_judged_by_the_time_of_the_event(self, placed_at):
        event = told("paid", id := new_id(), 1, email=ANN, placedAt=placed_at)
        erase(ANN)
        assert give(event) == "done"
        assert Order.objects.get(id=id).email == ERASED_ADDRESS

    def test_over_a_broker_is_the_same(self):
        erase(ANN)
        assert tell("paid", "A-9", 1, email=ANN) == "done"
        assert Order.objects.get(id=our_id(source=SHOP, id="A-9")).email == ERASED_ADDRESS
        assert not InboundDeadLetter.objects.exists()
