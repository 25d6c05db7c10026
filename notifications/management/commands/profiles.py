"""`manage.py profiles print|load FILE`: the mail profiles and own texts as YAML, for version control."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, TextIO

import yaml
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.db.models.functions import Now

from notifications.content.text_documents import as_texts, load_texts
from notifications.models import MailProfile
from notifications.profile_form import as_document, form_of
from notifications.profile_history import record_profile
from runtime.audit import command_actor


def _documents() -> Iterator[dict[str, Any]]:
    """Yield a document of each profile, and one of the texts of every shop, which need no profile."""
    profiles = {profile.source: as_document(profile) for profile in MailProfile.objects.all()}
    for source in sorted({"", *profiles}):
        texts = as_texts(source)
        if source in profiles or texts:
            yield profiles.get(source, {"source": source}) | ({"texts": texts} if texts else {})


class Command(BaseCommand):
    help = "Print the mail profiles and their published texts as YAML, or replace all by those of a file."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("print", help="write the profiles to stdout")
        load = verbs.add_parser("load", help="make the profiles those of the file, and delete all others")
        load.add_argument(
            "file", type=argparse.FileType(encoding="utf-8"), metavar="FILE", help="- for stdin"
        )

    def handle(self, *_: Any, verb: str, **options: Any) -> None:
        if verb == "print":
            documents = list(_documents())
            self.stdout.write(yaml.safe_dump(documents, sort_keys=False, allow_unicode=True), ending="")
        else:
            self._load(options["file"])

    def _load(self, file: TextIO) -> None:
        """Write all profiles, or on a mistake none."""
        with file:
            try:
                documents = yaml.safe_load(file) or []
            except yaml.YAMLError as error:
                raise CommandError(f"The file is not YAML: {error}") from None
            except UnicodeDecodeError as error:
                raise CommandError(f"The file is not UTF-8: {error}") from None
        if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
            raise CommandError("The file must be a list of profiles, such as `profiles print` writes.")
        sources = [str(document.get("source") or "") for document in documents]
        if twice := {source for source in sources if sources.count(source) > 1}:
            raise CommandError(f"{min(twice)!r} has two profiles. Keep one.")
        with transaction.atomic():
            stored = {row.source: row for row in MailProfile.objects.select_for_update()}
            for source, document in zip(sources, documents, strict=True):
                texts = document.pop("texts", {})
                if source or document.keys() - {
                    "source"
                }:  # texts of every shop need no profile of own orders
                    self._write(source, document, stored.pop(source, None))
                self._write_texts(source, texts)
            for source in sorted({"", *stored}.difference(sources)):
                self._write_texts(source, {})
            for source, row in stored.items():
                before, by = as_document(row), command_actor()
                record_profile(row, before=before, act="Deleted.", by=by, is_deleted=True)
                row.delete()
                self.stdout.write(f"{source or 'own orders'}: deleted")

    def _write_texts(self, source: str, texts: Any) -> None:
        try:
            for line in load_texts(source, texts, by=command_actor()):
                self.stdout.write(line)
        except ValueError as error:
            raise CommandError(f"{source or 'every shop'}: {error}") from None

    def _write(self, source: str, document: dict[str, Any], row: MailProfile | None) -> None:
        before = None if row is None else as_document(row)
        try:
            form = form_of(document, instance=row or MailProfile())
        except ValueError as error:
            raise CommandError(f"{source or 'own orders'}: {error}") from None
        if not form.is_valid():
            name, errors = next(iter(form.errors.items()))
            raise CommandError(f"{source or 'own orders'}: {name}: {errors[0]}")
        if form.logo_warning:
            self.stderr.write(f"{source or 'own orders'}: logo_url: {form.logo_warning}")
        if as_document(form.instance) == before:
            self.stdout.write(f"{source or 'own orders'}: unchanged")
            return
        form.instance.updated_at = Now()
        profile = form.save()
        act = "Added." if before is None else "Changed."
        record_profile(profile, before=before, act=act, by=command_actor())
        self.stdout.write(f"{source or 'own orders'}: {'created' if before is None else 'changed'}")
