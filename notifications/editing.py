"""Save, check, publish, restore and withdraw templates of the database. Called by the admin.

A version is published only if its check finds no mistake. The check and the previews render in a process of
their own (notifications.sandboxed.trial), outside a transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now

from notifications import published
from notifications.models import EmailTemplate, EmailTemplateVersion
from notifications.parts import PARTS
from notifications.profiles import find_profile
from notifications.rendering import Shown, environment, folders, show
from notifications.sandboxed.trial import Mistake, Tried, try_draft
from notifications.template_checks import Samples, known_variables
from runtime.database.transactions import after_commit
from runtime.process import cached_rows

log = structlog.get_logger(__name__)


class Changed(Exception):
    """Another user changed the template since it was read."""


class HasMistakes(Exception):
    """A template is not published, because its check found mistakes."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = mistakes


def begin(*, source: str, event_type: str, locale: str, username: str) -> tuple[EmailTemplate, bool]:
    """Return the template of these keys, and whether it is new. Its draft is then the text in use."""
    parts = file_parts(event_type=event_type)
    for version in published.find(source=source, event_type=event_type, locale=locale)[:1]:
        # This process may still know a version that is gone, for example after a restore.
        if (row := EmailTemplateVersion.objects.filter(id=version.id).first()) is not None:
            parts = published.parts_of(row)
    values = {"edited_by": username, **_columns(parts)}
    return EmailTemplate.objects.get_or_create(
        source=source, event_type=event_type, locale=locale, defaults=values
    )


def file_parts(*, event_type: str) -> dict[str, str]:
    """Return the texts of the files of an e-mail, those of the shop first."""
    loader = environment().loader
    assert loader
    return {name: loader.get_source(environment(), f"{event_type}/{name}")[0] for name in PARTS}


def save_draft(*, id: uuid.UUID, parts: Mapping[str, str], username: str, seen_at: str) -> EmailTemplate:
    """Write the draft. Raise `Changed` if somebody wrote it after `seen_at`, its time in ISO 8601."""
    with transaction.atomic():
        template = EmailTemplate.objects.select_for_update().get(id=id)
        if template.edited_at.isoformat() != seen_at:
            raise Changed(f"{template.edited_by} has changed this template since you opened it.")
        EmailTemplate.objects.filter(id=id).update(**_columns(parts), edited_by=username, edited_at=Now())
    return EmailTemplate.objects.get(id=id)


def preview(*, parts: Mapping[str, str], shown: Shown, samples: Samples) -> Tried:
    """Render texts with the data of one order."""
    return try_texts(parts, [shown], samples, is_checked=False)


def check(*, template: EmailTemplate, parts: Mapping[str, str], samples: Samples) -> Sequence[Mistake]:
    """Render texts with each sample in each language of the template, and return what is wrong."""
    profile = find_profile(template.source)
    languages = [template.locale] if template.locale else [code for code, _ in settings.LANGUAGES]
    shown = [
        show(locale=language, context=sample, profile=profile) for language in languages for sample in samples
    ]
    return try_texts(parts, shown, samples, is_checked=True).mistakes


def try_texts(
    parts: Mapping[str, str], shown: Sequence[Shown], samples: Samples, *, is_checked: bool
) -> Tried:
    """Render texts with each of the data in a process of its own, and with `is_checked` check each e-mail."""
    lists = [value for value in samples[0].values() if isinstance(value, list)]
    return try_draft(
        parts=parts,
        folders=folders(),
        renderings=[(one.language, one.data) for one in shown],
        known=known_variables(sample=samples[0]),
        attributes={key for entries in lists for entry in entries for key in entry},
        is_checked=is_checked,
    )


def publish(
    *, id: uuid.UUID, username: str, samples: Samples, seen_at: str, restored_from: int | None = None
) -> EmailTemplateVersion:
    """Make a version of the draft, or of the version `restored_from`, which becomes the draft, too.

    Raise `HasMistakes`, or `Changed` if another user changed the draft after `seen_at`, its time in ISO 8601.
    """
    template = EmailTemplate.objects.get(id=id)
    if template.edited_at.isoformat() != seen_at:
        raise Changed(f"{template.edited_by} has changed this template since you opened it.")
    old = template.versions.get(number=restored_from) if restored_from is not None else None
    parts = published.parts_of(old or template)
    if mistakes := check(template=template, parts=parts, samples=samples):
        raise HasMistakes(mistakes)
    with transaction.atomic():
        locked = EmailTemplate.objects.select_for_update().get(id=id)
        if locked.edited_at != template.edited_at:
            raise Changed(f"{locked.edited_by} has changed this template meanwhile.")
        last = locked.versions.aggregate(last=Max("number"))["last"] or 0
        version = EmailTemplateVersion.objects.create(
            template=locked,
            number=last + 1,
            **_columns(parts),
            restored_from=restored_from,
            published_by=username,
        )
        draft = {**_columns(parts), "edited_by": username, "edited_at": Now()} if old else {}
        EmailTemplate.objects.filter(id=id).update(published=version.number, **draft)
        _tell("template published", locked, template_version=version.number, user=username)
    return version


def withdraw(*, id: uuid.UUID, username: str) -> int | None:
    """Use no version of the template any more, so that less specific templates or the files are used.

    Return the number of the version that was in use, or None if none was.
    """
    with transaction.atomic():
        template = EmailTemplate.objects.select_for_update().get(id=id)
        if template.published is not None:
            EmailTemplate.objects.filter(id=id).update(published=None)
            _tell("template withdrawn", template, template_version=template.published, user=username)
    return template.published


def _tell(event: str, template: EmailTemplate, **fields: object) -> None:
    """Log a change after its commit, and use it in this process at once. Others see it within 10 seconds."""

    def tell() -> None:
        log.info(event, template=str(template), **fields)
        cached_rows.refresh()

    after_commit(tell)


def _columns(parts: Mapping[str, str]) -> dict[str, str]:
    return dict(zip(("subject", "body_text", "body_html"), (parts[name] for name in PARTS), strict=True))
