"""`manage.py preview_email order.paid`: write an e-mail in every language into one HTML file."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.template.loader import render_to_string

from notifications.rendering import TemplateFailed, is_locale, render_email
from orders.emails import email_context, present_change
from orders.events import EMAILS
from orders.models import Order

#: event -> the details of the example's change that the e-mail shows
CHANGES: dict[str, dict[str, Any]] = {
    "order.completed": {"tracking_url": "https://parcels.example.com/42"},
    "order.cancelled": {"reason": "Out of stock", "was_paid": True},
    "order.refunded": {"amount": 6890},
    "order.part_refunded": {"amount": 1900},
}


class Command(BaseCommand):
    help = "Render an e-mail with the current templates into an HTML file, all languages side by side."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("event", choices=EMAILS, metavar="EVENT", help=", ".join(EMAILS))
        parser.add_argument("--order", metavar="ID", help="the order to show (default: an example)")
        parser.add_argument(
            "--locale", metavar="TAG", help="one locale, such as de-AT (default: all languages)"
        )
        parser.add_argument("--output", metavar="FILE", type=Path, help="default: var/preview/EVENT.html")

    def handle(
        self, *, event: str, order: str | None, locale: str | None, output: Path | None, **_: Any
    ) -> None:
        if locale and not is_locale(locale):
            raise CommandError(f"{locale} is not a language tag, such as en or de-AT.")
        shown = _stored(order) if order else _example(refunded=CHANGES.get(event, {}).get("amount", 0))
        context = email_context(
            order=shown, change=present_change(shown) if order else CHANGES.get(event, {})
        )
        tags = [locale] if locale else [tag for tag, _ in settings.LANGUAGES]
        try:
            mails = [(tag, render_email(event_type=event, locale=tag, context=context)) for tag in tags]
        except TemplateFailed as error:
            raise CommandError(f"{error}: {error.__cause__}") from error
        target = output or Path(settings.BASE_DIR) / "var" / "preview" / f"{event}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render_to_string("preview_email.html", {"event": event, "mails": mails}))
        self.stdout.write(str(target))


def _stored(id: str) -> Order:
    try:
        return Order.objects.get(id=id)
    except (Order.DoesNotExist, ValidationError):
        raise CommandError(f"There is no order {id}. Give an order's id.") from None


def _example(*, refunded: int) -> Order:
    now = dt.datetime.now(tz=dt.UTC)
    return Order(
        id=uuid.UUID(int=0x456789AB),
        user_id=uuid.UUID(int=1),
        name="Anna Schmidt",
        reference="A-10234",
        currency="EUR",
        total_amount=6890,
        refunded_amount=refunded,
        items=[
            {"sku": "M", "name": "Ceramic mug", "quantity": 2, "unit_amount": 1900},
            {"sku": "T", "name": "Tea towel", "quantity": 1, "unit_amount": 2500},
        ],
        created_at=now - dt.timedelta(days=1),
        updated_at=now,
    )
