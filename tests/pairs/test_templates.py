"""A template of the shop that raises only for some orders, and what renders it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.urls import reverse

from tests.kit.api import Api, assert_problem, make_token
from tests.kit.brokers import Hand, consume
from tests.kit.events import PAID, SHOP, envelope, order, received, status, told
from tests.kit.orders import pay_order
from tests.kit.waiting import until
from tests.kit.words import (
    EMAILS,
    HANDLERS,
    NAME,
    DomainEvent,
    EmailNotification,
    IdempotencyKey,
    InboundDeadLetter,
    Order,
    ProcessedEvent,
    Received,
    check_templates,
    render_again,
    replay_next,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
#: The start does not notice it, because every sample has another reference. The error quotes the reference.
BROKEN = "\nPaid: {% if reference == 'Ann 7' %}{{ {}[reference] }}{% endif %}"
WHERE = "order.paid/subject.txt, line 2"


@pytest.fixture
def replace(tmp_path, settings) -> Callable[[str], None]:
    """Use a folder of the shop's own templates; return a function that writes the subject of order.paid."""
    *others, emails = settings.TEMPLATES
    settings.EMAIL_TEMPLATES_DIR = str(tmp_path)

    def write(text: str) -> None:
        (tmp_path / "order.paid").mkdir(exist_ok=True)
        (tmp_path / "order.paid" / "subject.txt").write_text(text)
        # A new environment, as in a process that was started again.
        settings.TEMPLATES = [*others, emails | {"DIRS": [tmp_path, *emails["DIRS"][-1:]]}]
        check_templates(declared=EMAILS)

    write(BROKEN)
    return write


@pytest.fixture
def unlucky(replace) -> Order:
    return order(reference="Ann 7")


def payment_of(placed: Order) -> Received:
    return received(PAID, envelope(PAID, {"orderId": str(placed.id)}), key=str(placed.id))


def nothing_changed(placed: Order) -> bool:
    events = DomainEvent.objects.exclude(event_type__endswith=".dlt")
    return (status(placed), events.count(), EmailNotification.objects.count()) == ("pending", 1, 0)


def test_a_request_is_refused_whole_and_its_repeat_succeeds_once_the_template_is_right(
    replace, unlucky, caplog
):
    api, path = Api(make_token()), f"/api/v1/orders/{unlucky.id}/pay"
    problem = assert_problem(api.post(path, key="k"), 500, "internal")
    assert "Ann" not in str(problem)
    assert WHERE in caplog.text
    assert nothing_changed(unlucky) and not IdempotencyKey.objects.exists()
    replace("Paid: {{ reference }}")
    assert api.post(path, key="k").status_code == 200
    assert status(unlucky) == "paid"
    assert EmailNotification.objects.get().subject == "Paid: Ann 7"


def test_an_inbound_event_becomes_a_dead_letter_that_names_the_file_and_can_be_replayed(
    replace, unlucky, fast
):
    fast.retries()
    lucky = order(reference="A-1")
    loop = consume(Hand([payment_of(unlucky), payment_of(lucky)]))
    until(InboundDeadLetter.objects.exists, meanwhile=lambda: loop.step(seconds=0.01))
    assert status(lucky) == "paid" and status(unlucky) == "pending"
    letter = InboundDeadLetter.objects.get()
    assert WHERE in letter.error and "Ann" not in letter.error
    note = DomainEvent.objects.get(event_type=f"{PAID}.dlt")
    assert "Ann" not in str(note.payload)
    replace("Paid: {{ reference }}")
    InboundDeadLetter.objects.request_replay(ids=[letter.id])
    assert replay_next(consumer=NAME, handlers=HANDLERS) is not None
    assert status(unlucky) == "paid"
    assert EmailNotification.objects.filter(order_id=unlucky.id).count() == 1


@pytest.mark.parametrize("of_shop", [True, False])
def test_an_event_over_http_is_refused_alone_and_not_stored(replace, unlucky, settings, of_shop):
    settings.ORDER_SOURCES = [SHOP]
    ours = envelope(PAID, {"orderId": str(unlucky.id)})
    bad = told("paid", "A-7", 1, reference="Ann 7") if of_shop else ours
    good = envelope(PAID, {"orderId": str(order().id)})
    api = Api(make_token())
    answer: Any = api.post("/api/v1/events", [bad, good]).json()
    assert [result["result"] for result in answer["results"]] == ["refused", "processed"]
    assert "Ann" not in str(answer)
    assert ProcessedEvent.objects.count() == 1 and not Order.objects.filter(source=SHOP).exists()
    replace("Paid: {{ reference }}")
    assert api.post("/api/v1/events", bad).json()["result"] == "processed"


def test_rendering_again_refuses_this_email_alone_and_names_the_file(replace, unlucky):
    replace("Paid: {{ reference }}")
    others = [order(reference="A-1"), unlucky]
    for other in others:
        pay_order(order_id=other.id)
    EmailNotification.objects.update(status="dead_lettered", ended_by="provider")
    replace(BROKEN)
    with transaction.atomic():
        done, (refusal,) = render_again(ids=list(EmailNotification.objects.values_list("id", flat=True)))
    assert len(done) == 1
    assert WHERE in refusal.reason and "Ann" not in refusal.reason
    assert EmailNotification.objects.get(order_id=unlucky.id).status == "dead_lettered"


def test_a_preview_names_the_file(unlucky, admin_client):
    page = admin_client.get(reverse("admin:orders_order_emails", args=[unlucky.id]), {"event": "order.paid"})
    assert page.status_code == 200 and WHERE in page.content.decode()
    body = reverse("admin:orders_order_email_body", args=[unlucky.id])
    assert admin_client.get(body, {"event": "order.paid"}).status_code == 404
