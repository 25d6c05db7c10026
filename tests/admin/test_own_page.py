"""A user's own page: an address counts after its link was opened, and ten test e-mails go out an hour."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import signing
from django.test import Client

from local.prepare import make_local_login
from notifications import test_emails
from notifications.test_emails import count_test_email
from runtime.models import AuditRow
from runtime.process import counts
from tests.kit.acts import told_acts
from tests.kit.orders import make_order
from tests.kit.people import client_of, confirm_address, make_user
from tests.kit.words import address_hash
from web.login import own_address

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
PAGE = "/admin/account/"
ANN = "Ann@example.com"


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect the e-mails to users, which no provider gets."""
    sent: list[dict[str, Any]] = []

    def send(**values: Any) -> str:
        sent.append(values)
        return ""

    monkeypatch.setattr("operations.admin.own_page.send_unsaved", send)
    monkeypatch.setattr("orders.admin.previews.send_preview", send)
    monkeypatch.setattr(counts, "_away_until", 0.0)
    return sent


@pytest.fixture
def ann() -> User:
    return make_user("ann", group="support")


def link_in(email: dict[str, Any]) -> str:
    match = re.search(r"http://testserver(\S+)", email["text"])
    assert match and match[1].replace("&", "&amp;") in email["html"]
    return match[1]


def ask(user: User, address: str) -> Any:
    return client_of(user).post(PAGE, {"address": address}, follow=True)


def opened(client: Client, link: str) -> str:
    """Open a link, and return what the page says."""
    (message,) = client.get(link, follow=True).context["messages"]
    return str(message)


def preview(user: User) -> str:
    """Send an e-mail of an order to the user, and return what the page says."""
    page = f"/admin/orders/order/{make_order().id}/emails/"
    (message,) = client_of(user).post(page, {"event": "order.paid"}).context["messages"]
    return str(message)


def test_an_address_counts_after_its_link_was_opened_and_the_next_one_after_its_own(ann, sent):
    assert "no e-mail address. Open “My account”." in preview(ann) and not sent
    answer = ask(ann, f" {ANN} ")
    assert b"A link was sent to Ann@example.com." in answer.content
    assert sent[0]["recipient_email"] == ANN and User.objects.get().email == ""
    link = link_in(sent.pop())
    assert opened(client_of(ann), link) == "Test e-mails go to Ann@example.com from now on."
    assert preview(User.objects.get()) == "Sent to Ann@example.com." and sent.pop()["recipient_email"] == ANN
    assert opened(client_of(ann), link).startswith("Test e-mails go to")  # twice is no harm
    ask(User.objects.get(), "ann@elsewhere.example")
    assert preview(User.objects.get()) == "Sent to Ann@example.com."
    opened(client_of(ann), link_in(sent[0]))
    assert preview(User.objects.get()) == "Sent to ann@elsewhere.example."
    assert opened(client_of(ann), link).startswith("Your address has changed since this link was sent.")
    assert told_acts()[:2] == [
        f"Sent a link to an address of their own. to=hash:{address_hash(ANN)}",
        f"Confirmed their own address. address=hash:{address_hash(ANN)}",
    ]
    assert AuditRow.objects.filter(act__startswith="Confirmed").values_list("who", "subject")[0] == (
        "ann",
        "ann",
    )


def test_an_address_that_was_changed_in_another_way_does_not_count(ann, sent):
    confirm_address(ann, ANN)
    User.objects.update(email="boss@example.com")
    assert "Nobody has confirmed yet that boss@example.com is yours." in preview(User.objects.get())
    User.objects.update(email="boss@localhost")
    assert "Correct your e-mail address." in preview(User.objects.get()) and not sent
    assert b"Correct your e-mail address." not in client_of(ann).get(PAGE).content


def test_a_link_that_is_old_broken_or_of_another_user_changes_nothing(ann, sent, monkeypatch):
    bob = make_user("bob")
    ask(ann, ANN)
    link = link_in(sent[0])
    assert opened(client_of(bob), link).startswith("This link is of another user.")
    assert opened(client_of(ann), link[:-1]).startswith("This link is not complete.")
    forged = signing.dumps([ann.pk, ANN, ""], salt="another")
    assert opened(client_of(ann), f"{PAGE}?link={forged}").startswith("This link is not complete.")
    assert Client().get(link).headers["Location"].startswith("/admin/login/?next=/admin/account/")
    monkeypatch.setattr(own_address, "LINK_HOURS", -1)
    assert opened(client_of(ann), link).startswith("This link is older than")
    assert not User.objects.exclude(email="").exists()


def test_the_login_of_make_run_has_an_address(sent):
    for _ in range(2):
        make_local_login()
    assert preview(User.objects.get()) == "Sent to admin@example.com."


@pytest.mark.parametrize("address", ["", "ann", "ann@localhost", "a@b.example\r\nBcc: c@d.example"])
def test_what_is_no_address_is_named_at_the_field(ann, sent, address):
    page = ask(ann, address).content.decode()
    assert 'id="address-mistake"' in page and 'aria-invalid="true"' in page and not sent


def test_several_people_may_confirm_a_shared_mailbox(ann, sent):
    bob = make_user("bob", group="support")
    for user in (ann, bob):
        ask(user, "office@shop.example")
        assert opened(client_of(user), link_in(sent.pop())).startswith("Test e-mails go to")
    for user in User.objects.all():
        assert preview(user) == "Sent to office@shop.example."


def test_a_person_sends_ten_test_emails_an_hour_and_others_go_on(ann, sent, monkeypatch):
    monkeypatch.setattr(test_emails, "MOST", 2)
    confirm_address(ann, ANN)
    with pytest.raises(ValueError, match="no provider"), count_test_email(ann):
        raise ValueError("no provider")  # which sent nothing
    assert preview(ann).startswith("Sent to") and ask(ann, "other@example.com").status_code == 200
    said = "You have sent 2 test e-mails within an hour, which is the most. Try again in 60 minutes."
    assert preview(ann) == said and said in ask(ann, "other@example.com").content.decode()
    assert len(sent) == 2
    bob = make_user("bob", group="support")
    confirm_address(bob, "bob@example.com")
    assert preview(bob) == "Sent to bob@example.com."


def test_nobody_is_refused_while_valkey_is_away(ann, sent, settings, monkeypatch):
    monkeypatch.setattr(test_emails, "MOST", 0)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    confirm_address(ann, ANN)
    assert preview(ann) == "Sent to Ann@example.com."
