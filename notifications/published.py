"""The published templates of the database, as each process knows them.

`find` reads no table (see `cached_rows`). A process reads and compiles each version once. A version that does
not compile, for example because a later release has other rules, fails like one that cannot be rendered.
"""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, connection
from django.db.models.functions import Now
from django.template import engines
from jinja2.sandbox import ImmutableSandboxedEnvironment

from notifications.models import EmailTemplate, EmailTemplateVersion, template_name
from notifications.parts import PARTS, Part, place_of
from notifications.sandboxed.environment import compile_part, limited, sandbox
from runtime.process.cached_rows import CachedRows, version_of

log = structlog.get_logger(__name__)


class NotCompiled(Exception):
    """A version does not compile in this release."""


@dataclass(frozen=True, slots=True)
class Version:
    """A published version. `failure` says why it does not compile."""

    id: uuid.UUID
    name: str
    number: int
    parts: Mapping[str, Part]
    failure: str = ""

    def part(self, name: str) -> Part:
        if self.failure:
            raise NotCompiled(self.failure)
        return self.parts[name]


def find(*, source: str, event_type: str, locale: str) -> Sequence[Version]:
    """Return the version in use and the one before it of the most specific template, or nothing."""
    known = versions.get()
    if not known:
        return ()
    for key in ((source, locale), (source, ""), ("", locale), ("", "")):
        if found := known.get(_key(event_type, *key)):
            return found
    return ()


def note_failure(version: Version, *, error: Exception) -> None:
    """Log that a version failed, and note it in its row, without a value of the order.

    The first failure of a version in a process starts a thread, because the caller may be in the transaction
    of an order's change.
    """
    if version.id in _failed:
        return
    _failed.add(version.id)
    what = version.failure or f"{type(error).__name__}{place_of(error)}"
    log.error("template fails", template=version.name, template_version=version.number, error=what)
    threading.Thread(target=_write_failure, args=(version, what), name="template fails", daemon=True).start()


def _write_failure(version: Version, what: str) -> None:
    try:
        rows = EmailTemplateVersion.objects.filter(id=version.id, failed_at=None)
        rows.update(failed_at=Now(), failure=what[:300])
    except DatabaseError as error:
        _failed.discard(version.id)  # so that the next failure tries again
        log.warning("failure of a template not noted", template_version=str(version.id), error=repr(error))
    finally:
        connection.close()


#: The versions whose failure this process has noted.
_failed: set[uuid.UUID] = set()
#: The versions that this process has compiled.
_compiled: dict[uuid.UUID, Version] = {}


def _load() -> Mapping[str, Sequence[Version]]:
    """Compile the versions in use and those before them, as far as they are new, and forget all others."""
    wanted: dict[uuid.UUID, str] = {}
    ids: dict[str, list[uuid.UUID]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT template.event_type, template.source, template.locale, version.id
            FROM email_templates AS template
            JOIN email_template_versions AS version ON version.template_id = template.id
                AND version.number IN (template.published, template.published - 1)
            ORDER BY version.number DESC
            """
        )
        for event_type, source, locale, id in cursor.fetchall():
            wanted[id] = template_name(source=source, event_type=event_type, locale=locale)
            ids.setdefault(_key(event_type, source, locale), []).append(id)
    known = {id: version for id, version in _compiled.items() if id in wanted}
    for row in EmailTemplateVersion.objects.filter(id__in=wanted.keys() - known.keys()):
        known[row.id] = _compile(row, name=wanted[row.id])
    _compiled.clear()
    _compiled.update(known)
    return {key: [known[id] for id in some if id in known] for key, some in ids.items()}


def _compile(row: EmailTemplateVersion, *, name: str) -> Version:
    sources = parts_of(row)
    try:
        environment = _sandbox(tuple(map(str, engines["emails"].template_dirs)))
        parts = {part: limited(compile_part(environment, name=part, source=sources[part])) for part in PARTS}
    except Exception as error:  # noqa: BLE001 - a bad row must not keep the others from this process
        return Version(row.id, name, row.number, {}, f"{type(error).__name__}{place_of(error)}")
    return Version(row.id, name, row.number, parts)


def parts_of(row: EmailTemplate | EmailTemplateVersion) -> dict[str, str]:
    """Return the texts of a draft or of a version by the names of the parts."""
    return dict(zip(PARTS, (row.subject, row.body_text, row.body_html), strict=True))


@functools.lru_cache(maxsize=1)
def _sandbox(folders: tuple[str, ...]) -> ImmutableSandboxedEnvironment:
    return sandbox(folders=folders)


def _key(event_type: str, source: str, locale: str) -> str:
    return f"{event_type}:{locale}:{source}"  # neither of the first two has a colon


versions: CachedRows[Sequence[Version]] = CachedRows(
    version=version_of(EmailTemplate._meta.db_table, where="published IS NOT NULL"), load=_load
)
