"""Profiles that a command loads reach running processes, and a refused sender stops its own e-mails alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.shop import Shop

pytestmark = pytest.mark.flow
PROFILE = """
- source: ""
  from_email: Tea <orders@tea.test>
  shop_name: Tea
  postal_address: 5 High Street, Leeds
  colour: "#166534"
"""


def load(shop: Shop, tmp_path: Path, text: str) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(text)
    shop.manage("profiles", "load", str(file))


def pays_as(shop: Shop, sender: str) -> bool:
    """Pay an order, and return whether its e-mail has the sender."""
    shop.pay(shop.place())
    return bool(shop.rows("from_email")[-1][0] == sender)


def test_a_refused_sender_waits_while_other_senders_go_on_and_is_sent_once_verified(shared_shop, tmp_path):
    shop = shared_shop
    ours = "orders@example.com"
    assert pays_as(shop, ours)
    load(shop, tmp_path, PROFILE)
    shop.until(lambda: pays_as(shop, "Tea <orders@tea.test>"), "the web has read the profile")
    shop.until(lambda: shop.all_sent(len(shop.rows("id"))), "all are sent")

    text = "The from address does not match a verified Sender Identity."
    shop.sandbox.fail(kind="status", status=403, message=text, sender="@tea.test")
    assert pays_as(shop, "Tea <orders@tea.test>")
    refused = 'errors @> \'[{"outcome": "sender_refused"}]\''
    shop.until(lambda: (True,) in shop.rows(refused), "the provider refuses the sender")
    load(shop, tmp_path, "[]")
    shop.until(lambda: pays_as(shop, ours), "the web has read that the profile is gone")

    def others_are_sent() -> bool:
        waiting = {sender for sender, status in shop.rows("from_email, status") if status != "sent"}
        return waiting == {"Tea <orders@tea.test>"}

    shop.until(others_are_sent, "the e-mails of the other sender are sent")
    assert "circuit opened" not in shop.log("worker")

    shop.sandbox.heal()
    # As if the minute had passed for which the sender rests, in the worker and in its rows.
    shop.kill("worker")
    shop.query(
        "UPDATE email_notifications SET next_attempt_at = statement_timestamp() WHERE status <> 'sent'"
    )
    shop.start("worker")
    assert pays_as(shop, ours)  # which wakes the worker
    shop.until(lambda: shop.all_sent(len(shop.rows("id"))), "the e-mails of the verified sender are sent")
    assert shop.sandbox.stats()["doubled"] == {}
