"""Templates of the database, published without a check, as this process then knows them."""

from __future__ import annotations

from typing import Any

from notifications import published
from notifications.editing import file_parts
from notifications.models import EmailTemplate, EmailTemplateVersion
from runtime.process import cached_rows

TEXTS = {
    "subject": "Paid: {{ reference }}",
    "body_text": "Hello {{ name }}",
    "body_html": "<p>{{ name }}</p>",
}


def publish_template(
    *, event_type: str = "order.paid", source: str = "", locale: str = "", **values: Any
) -> EmailTemplateVersion:
    """Write the next version of a template, and use it in this process at once."""
    texts = {name: values.pop(name, text) for name, text in TEXTS.items()}
    template, _ = EmailTemplate.objects.get_or_create(
        event_type=event_type, source=source, locale=locale, defaults=texts
    )
    number = template.versions.count() + 1
    version = EmailTemplateVersion.objects.create(template=template, number=number, **texts, **values)
    EmailTemplate.objects.filter(id=template.id).update(published=number, **texts)
    renew()
    return version


def renew() -> None:
    """Read the templates again. Their version does not change within the transaction of a test."""
    published.versions.loaded_version = "another"
    cached_rows.refresh()


def text_of_file(event_type: str = "order.paid") -> dict[str, str]:
    """Return the texts of the files as the fields of the editor."""
    return dict(zip(TEXTS, file_parts(event_type=event_type).values(), strict=True))
