"""Erase a person's data: detached tables, dead events, stored answers, typed texts, live rows, cold files.

`persons` decides which rows belong to a person. An erasure may be killed at any point and repeated. It first
records a keyed hash of the address, and every step changes only rows that are not erased yet. The orders come
last: until then they lead to all other rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import structlog
from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from events.models import DomainEvent
from notifications.models import EmailNotification
from notifications.services import withdraw_emails
from notifications.states.transitions import UNFINISHED, Status
from orders import services
from orders.models import Order
from orders.privacy.dead_events import erase_copies
from orders.privacy.persons import (
    DIRECT,
    check_address,
    orders_of_person,
    orders_without_address,
    platform_emails,
)
from orders.privacy.typed_texts import erase_reasons, erase_texts_with_address
from retention.cold_files.archive import cold_partitions
from retention.models import Erasure
from retention.partitioned import partitioned_models
from retention.partitions.locks import Report, exclusive_lock, no_statement_timeout
from retention.partitions.partitions import require_owner
from retention.person import Person
from retention.rows_of_person import (
    erase_chosen_texts,
    erase_from_cold_file,
    erase_rows,
    ids_about,
    side_tables,
)
from retention.texts_of_person import erase_texts
from runtime.database.away import is_lock_timeout
from runtime.database.transactions import after_commit
from runtime.personal_data import ERASED_ADDRESS, address_hash

log = structlog.get_logger(__name__)

#: The role that owns the tables. Only the rewriting of cold files needs it.
OWNER = "owner"
CHUNK = 100
PASSES = 5
#: A refusal names at most so many orders, and as many e-mails.
MOST_NAMED = 10


class NotFinished(RuntimeError):
    """The person has orders or e-mails that are not finished. The text names them and says what to do."""

    def __init__(self, orders: Sequence[str], emails: Sequence[str]) -> None:
        super().__init__(
            f"{_listed(orders, 'order', 'unfinished')}{_listed(emails, 'e-mail', 'not sent yet')}After an"
            " erasure the customer would get no further e-mail. Finish them first, or tick “Also unfinished"
            " orders” (in the command: --force) to erase all the same."
        )


class StillSending(RuntimeError):
    """Workers are sending e-mails to the person at this moment."""


@dataclasses.dataclass(frozen=True, slots=True)
class ErasureResult:
    """The number of changed rows by table, and the names of the cold files that are still to be rewritten."""

    counts: dict[str, int]
    cold_files: list[str]


def erase_person(*, email: str, report: Report, force: bool = False) -> ErasureResult:
    """Erase a person's addresses, names, subjects and bodies, also those in errors and stored answers.

    Audit columns stay. The first rollover of next month rewrites the cold files, or `rewrite_cold_files`
    does.

    If `force`, erase although orders or e-mails are in flight, and give up unsent e-mails. Otherwise raise
    `NotFinished` for those, also for an order that the person places during the erasure. Raise `NoPerson` or
    `AlreadyRunning` without changing anything, and `StillSending` if the erasure has to be run again.
    """
    email = check_address(email)
    counts: Counter[str] = Counter()
    with contextlib.ExitStack() as locks:
        for model in partitioned_models():
            locks.enter_context(exclusive_lock(model=model, using=DIRECT))
        owned: frozenset[uuid.UUID] = frozenset()
        for number in range(PASSES):
            with no_statement_timeout(using="default"):
                rows = _find(email)
                if number and not rows.is_ready:
                    break
                if not force:
                    check_not_in_flight(email)
            erasure = _record(email, is_new_request=number == 0)
            report("recorded", orders=len(rows.owned))
            owned |= rows.owned
            counts.update(_erase_everywhere(email, rows, report, force))
        # Erase what was stored meanwhile, too, but nothing of orders that were corrected meanwhile.
        erased = Order.objects.filter(id__in=owned, email=ERASED_ADDRESS).values_list("id", flat=True)
        late = _erase_texts(Person.of(email, frozenset(erased)))
        counts.update(late)
        report("erased", rows=late.total())
        counts.update(_erase_late(email, report, force))
        totals = Counter(erasure.counts) + counts
        Erasure.objects.filter(id=erasure.id).update(counts=dict(totals), finished_at=Now())
        erasure.refresh_from_db()
    changed = dict(+counts)
    cold_files = erasure.cold_files
    after_commit(
        lambda: log.info(
            "person erased", address_hash=address_hash(email), changed=changed, cold_files=cold_files
        )
    )
    return ErasureResult(changed, cold_files)


@dataclasses.dataclass(frozen=True, slots=True)
class _PersonRows:
    """A person's rows in the live tables."""

    #: The orders with the address, and those without one of the same user.
    owned: frozenset[uuid.UUID]
    #: The owned orders without an address.
    without_address: frozenset[uuid.UUID]
    #: The orders of e-mails to the person, whoever owns the orders now.
    mailed: frozenset[uuid.UUID]
    #: Whether some row can be erased now. E-mails that are being sent are erased at the end.
    is_ready: bool


def _find(email: str) -> _PersonRows:
    owned, emails = frozenset(orders_of_person(email).values_list("id", flat=True)), platform_emails(email)
    return _PersonRows(
        owned=owned,
        without_address=frozenset(orders_without_address(email).values_list("id", flat=True)),
        mailed=frozenset(emails.values_list("order_id", flat=True)),
        is_ready=bool(owned) or emails.exclude(status=Status.PROCESSING).exists(),
    )


def check_not_in_flight(email: str) -> None:
    """Raise `NotFinished` if the person has orders or e-mails that are not finished."""
    emails = platform_emails(email).filter(status__in=UNFINISHED).order_by("id")
    columns = list(emails.values_list("event_type", "order_id")[: MOST_NAMED + 1])
    # A join would let PostgreSQL read all orders.
    of = Order.objects.filter(id__in={id for _, id in columns}).values_list("id", "reference")
    references = dict(of)
    unsent = [f"{event} of {references.get(id) or id}" for event, id in columns]
    orders = _names(orders_of_person(email).in_flight())
    if orders or unsent:
        raise NotFinished(orders, unsent)


def _names(orders: QuerySet[Order]) -> list[str]:
    """Return the references of orders, or else their ids."""
    columns = orders.order_by("id").values_list("reference", "id")[: MOST_NAMED + 1]
    return [reference or str(id) for reference, id in columns]


def _record(email: str, *, is_new_request: bool) -> Erasure:
    """Record the person and the cold files before the rows that lead to them are erased.

    Record all cold files: only reading one tells whether it has the person's e-mails. Also record a person of
    whom nothing is stored, because a late event may bring an order.
    """
    hash = address_hash(email)
    recorded = Erasure.objects.filter(address_hash=hash).first()
    waiting = set(recorded.cold_files) if recorded else set()
    for model in partitioned_models():
        waiting |= {partition.name for partition in cold_partitions(table=model._meta.db_table, using=DIRECT)}
    values = {"cold_files": sorted(waiting), "finished_at": None}
    repeated = {"repeated_at": Now()} if is_new_request and recorded else {}
    recorded, _ = Erasure.objects.update_or_create(address_hash=hash, defaults=values | repeated)
    return recorded


def _erase_everywhere(email: str, of_person: _PersonRows, report: Report, force: bool) -> Counter[str]:
    counts: Counter[str] = Counter()
    person = Person.of(email, of_person.owned)

    def erased(changed: Mapping[str, int], **where: str) -> None:
        counts.update(changed)
        report("erased", rows=sum(changed.values()), **where)

    for model in partitioned_models():
        table = model._meta.db_table
        for name in side_tables(model=model, using=DIRECT):
            # Erase the reasons first. An erased row does not lead to them.
            erased(erase_reasons(ids=ids_about(model=model, person=person, using=DIRECT, table=name)))
            rows = erase_rows(model=model, person=person, using=DIRECT, table=name)
            if model is DomainEvent:
                rows += erase_copies(person=person, using=DIRECT, table=name)
                rows += erase_chosen_texts(model=DomainEvent, person=person, using=DIRECT, table=name)
            erased({table: rows}, partition=name)
    erased(_erase_texts(person))
    rest = (of_person.owned | of_person.mailed) - of_person.without_address
    for chunk in (*_chunks(of_person.without_address), *_chunks(rest)):
        erased(_erase_chunk(email, chunk, force, report))
    return counts


def _erase_texts(person: Person) -> Counter[str]:
    """Erase a person from stored answers, dead events, callers' keys in live events, and typed texts."""
    counts = erase_texts(person=person) + erase_texts_with_address(person=person)
    counts["outbox_events"] += erase_copies(person=person, using="default", table="outbox_events")
    counts["outbox_events"] += erase_chosen_texts(model=DomainEvent, person=person, using="default")
    return counts


def _erase_chunk(email: str, ids: list[uuid.UUID], force: bool, report: Report) -> Counter[str]:
    """Erase as `_erase_live` does. While another session holds one of the orders, wait and try again."""
    while True:
        try:
            return _erase_live(email, ids, force)
        except OperationalError as error:
            if not is_lock_timeout(error):
                raise
            report("waiting", orders=len(ids))


def _erase_live(email: str, ids: list[uuid.UUID], force: bool) -> Counter[str]:
    """Erase a person's data in some orders and their e-mails.

    One transaction locks the orders and then their e-mails, in the order in which a change locks them. It
    compares the address under the lock, since a corrected order belongs to somebody else. An order that is
    erased already may have got a new event meanwhile. Unless `force`, raise `NotFinished` for an unfinished
    order, which the person has placed since the last check.
    """
    with transaction.atomic():
        orders = list(Order.objects.filter(id__in=ids).order_by("id").select_for_update())
        owned = set(orders_of_person(email).filter(id__in=ids).values_list("id", flat=True))
        mine = [order.id for order in orders if order.id in owned]
        if not force and (unfinished := _names(Order.objects.in_flight().filter(id__in=mine))):
            raise NotFinished(unfinished, [])
        erased = [order.id for order in orders if order.email == ERASED_ADDRESS]
        person = Person.of(email, frozenset([*mine, *erased]))
        emails = platform_emails(email).filter(order_id__in=ids)
        # Also of e-mails about their orders to others, such as a copy to a colleague.
        about = EmailNotification.objects.filter(order_id__in=[*mine, *erased]).values_list("id", flat=True)
        counts = erase_reasons(ids=[*mine, *erased, *about, *emails.values_list("id", flat=True)])
        withdraw_emails(ids=emails.filter(status__in=UNFINISHED).values_list("id", flat=True))
        for model in partitioned_models():
            counts[model._meta.db_table] = erase_rows(model=model, person=person, using="default", orders=ids)
        counts.update(services.erase(orders=[order for order in orders if order.id in mine]))
    return counts


def _erase_late(email: str, report: Report, force: bool) -> Counter[str]:
    """Erase the e-mails that were being sent, each soon after it is settled: a worker may claim it again.

    Raise `StillSending` if some are still being sent after the time that one send can take, and `NotFinished`
    as `_erase_live` does.
    """
    one_send = settings.EMAIL_CONNECT_TIMEOUT + settings.EMAIL_READ_TIMEOUT + 5
    deadline = time.monotonic() + one_send
    counts: Counter[str] = Counter()
    while True:
        settled = platform_emails(email).exclude(status=Status.PROCESSING).values_list("order_id", flat=True)
        for chunk in _chunks(set(settled)):
            erased = _erase_chunk(email, chunk, force, report)
            counts.update(erased)
            report("erased", rows=erased.total())
        left = platform_emails(email).count()
        if not left:
            return counts
        report("waiting", emails=left)
        if time.monotonic() >= deadline:
            raise StillSending(f"{left} e-mails are being sent now.")
        time.sleep(0.5)


def _chunks(owners: Collection[uuid.UUID]) -> Iterator[list[uuid.UUID]]:
    ordered = sorted(owners)
    return (ordered[start : start + CHUNK] for start in range(0, len(ordered), CHUNK))


def rewrite_cold_files(*, report: Report) -> None:
    """Erase from the cold files now, instead of at the first rollover of next month.

    Raise `NotOwner` if this process cannot restore cold files into tables, or `AlreadyRunning`.
    """
    require_owner(using=OWNER)
    for model in partitioned_models():
        with exclusive_lock(model=model, using=DIRECT):
            for record in cold_partitions(table=model._meta.db_table, using=OWNER):
                erase_from_cold_file(model=model, record=record, report=report)


def _listed(names: Sequence[str], noun: str, state: str) -> str:
    """Return a sentence about unfinished rows, or an empty text without any.

    >>> _listed(["A-1", "A-2"], "order", "unfinished")
    '2 orders are unfinished: A-1, A-2. '
    """
    if not names:
        return ""
    are = f"{noun} is" if len(names) == 1 else f"{noun}s are"
    count = f"More than {MOST_NAMED}" if len(names) > MOST_NAMED else str(len(names))
    more = " …" if len(names) > MOST_NAMED else "."
    return f"{count} {are} {state}: {', '.join(names[:MOST_NAMED])}{more} "
