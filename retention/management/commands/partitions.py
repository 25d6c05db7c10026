"""`manage.py partitions …`: run the steps of retention by hand or from cron.

Each verb may run at any time, even twice at once: it repeats no finished step. The exit code is 0 if
everything is done, 1 if an operator must act (unfinished rows, a wrong archive), 75 (EX_TEMPFAIL) if another
run or session was in the way, and 2 for a name that does not exist. All verbs except `list` need the tables'
owner (`PARTITION_DATABASE_URL`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, transaction

from retention import rollover
from retention.cold_files import restore
from retention.cold_files.manifest import ColdFileDiffers
from retention.models import DetachedPartition
from retention.partitioned import PartitionedModel, partitioned_models
from retention.partitions import detach, indexes, partitions
from retention.partitions.catalogue import has_table, partition_named
from retention.partitions.listing import list_partitions
from retention.partitions.locks import OWNER_DATABASE, AlreadyRunning, exclusive_lock
from retention.upkeep import ensure_all
from runtime.audit import command_actor, record
from runtime.models import AuditRow
from runtime.progress import Reporter

OPERATOR, LATER, USAGE = 1, 75, 2
UNKNOWN = "Unknown partition {name}. Use a name that `partitions list` shows."


class Command(BaseCommand):
    help = "List, make, restore and drop the partitions of the big tables, or do all that is due."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="print each partition with its range, size, state and unfinished rows")
        ensure = verbs.add_parser(
            "ensure", help="make the missing partitions, and missing or invalid indexes"
        )
        ensure.add_argument("--ahead", type=int, help="how many intervals ahead (default: 6 months, 35 days)")
        verbs.add_parser("rollover", help="do everything that is due today, as keep_partitions does daily")
        for verb, words in {
            "restore": "load a cold file into a separate table, NAME_restored",
            "drop": "drop a detached day, an archived month, or a restored one (NAME_restored)",
        }.items():
            verbs.add_parser(verb, help=words).add_argument(
                "name", help="the partition's name, as `list` shows it"
            )

    def handle(self, *args: Any, verb: str, **options: Any) -> None:
        with Reporter(self.stdout) as report, _ending():
            if verb != "list":
                partitions.require_owner()
            if verb == "list":
                self._list()
            elif verb == "ensure":
                _record_act(verb)
                self._ensure(report, options["ahead"])
            elif verb == "rollover":
                _record_act(verb)
                _rollover(report)
            else:
                _one(verb, options["name"], report)

    def _list(self) -> None:
        shown = (
            "table",
            "partition",
            "since",
            "until",
            "state",
            "bytes",
            "rows",
            "unfinished",
            "held",
            "cold_file",
        )
        for line in list_partitions():
            self.stdout.write(json.dumps({name: line[name] for name in shown}, default=str))

    def _ensure(self, report: Reporter, ahead: int | None) -> None:
        for name in ensure_all(ahead=ahead):
            report("made", partition=name)
        for name in indexes.build_missing(using=OWNER_DATABASE):
            report("built", index=name)


def _record_act(verb: str, subject: str = "partitions") -> None:
    """Record that somebody began it. Its steps commit one by one, and may end in between."""
    with transaction.atomic():
        act = f"Began partitions {verb}."
        record(AuditRow(kind=AuditRow.Kind.SETUP, act=act, subject=subject), by=command_actor())


def _rollover(report: Reporter) -> None:
    result = rollover.rollover(report=report)
    if result.held or result.failed:
        raise CommandError(
            "\n".join([*map(str, result.held), *result.failed, *result.waiting]), returncode=OPERATOR
        )
    if result.waiting:
        raise CommandError("\n".join(result.waiting), returncode=LATER)


def _one(verb: str, name: str, report: Reporter) -> None:
    model = _model_of(name)
    if name.endswith(restore.RESTORED) and verb == "drop":
        if not has_table(name=name):
            raise CommandError(
                f"The table {name} does not exist. `partitions restore` would make it.", returncode=USAGE
            )
        _record_act(verb, name)
        restore.drop_restored(name=name)
        report("dropped", partition=name)
        return
    with exclusive_lock(model=model):
        detached = _read_detached(name)
        _record_act(verb, name)
        if verb == "restore":
            made = restore.restore(record=detached, tick=rollover.ticker(name, report))
            report("restored", partition=name, table=made)
        elif detached.dropped_at is None:
            rollover.drop_partition(model=model, record=detached, report=report)


def _model_of(name: str) -> PartitionedModel:
    bare = name.removesuffix(restore.RESTORED)
    for model in partitioned_models():
        if partition_named(model=model, name=bare):
            return model
    raise CommandError(UNKNOWN.format(name=name), returncode=USAGE)


def _read_detached(name: str) -> DetachedPartition:
    detached = DetachedPartition.objects.using(OWNER_DATABASE).filter(name=name).first()
    if detached is None and not has_table(name=name):
        raise CommandError(UNKNOWN.format(name=name), returncode=USAGE)
    if detached is None:
        text = f"{name} is not detached. `partitions rollover` detaches it after its hot days."
        raise CommandError(text, returncode=USAGE)
    return detached


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """Turn an error into an exit code for cron."""
    try:
        yield
    except (detach.PartitionHeld, ColdFileDiffers, partitions.NotOwner) as error:
        raise CommandError(str(error), returncode=OPERATOR) from error
    except (AlreadyRunning, detach.StillPending, detach.TableInUse, OperationalError) as error:
        raise CommandError(str(error).strip(), returncode=LATER) from error
