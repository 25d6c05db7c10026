"""Own texts of e-mails, published without a check, as this process then knows them."""

from __future__ import annotations

from typing import Any

from notifications.content import shop_texts
from notifications.content.sentences import original
from notifications.content.shop_texts import entry_of
from notifications.content.template_files import Key, extra_key
from notifications.models import EmailText, EmailTextVersion
from runtime.process import cached_rows

SUBJECT = Key("", "Payment received for your order %(reference)s")
READY = Key("", "We are now getting your order ready.")
THANKS = Key(
    "",
    "Thank you. On %(changed_at)s we received your payment of %(total_amount)s for your order %(reference)s.",
)
BEFORE, AFTER = extra_key("before"), extra_key("after")
HELLO = Key("", "Hello %(name)s,")


def publish_texts(
    texts: dict[Key, str] | None = None,
    *,
    event_type: str = "order.paid",
    source: str = "",
    locale: str = "en",
    originals: dict[Key, str] | None = None,
    **values: Any,
) -> EmailTextVersion:
    """Write the next version of an e-mail's own texts, and use it in this process at once."""
    texts = {SUBJECT: "Paid: {reference}"} if texts is None else texts
    entries = [
        entry_of(key, text, (originals or {}).get(key, original(key, locale))) for key, text in texts.items()
    ]
    row, _ = EmailText.objects.get_or_create(event_type=event_type, source=source, locale=locale)
    number = row.versions.count() + 1
    version = EmailTextVersion.objects.create(text=row, number=number, sentences=entries, **values)
    EmailText.objects.filter(id=row.id).update(published=number, sentences=entries)
    renew()
    return version


def renew() -> None:
    """Read the own texts again. Their version does not change within the transaction of a test."""
    shop_texts.versions.loaded_version = "another"
    cached_rows.refresh()
