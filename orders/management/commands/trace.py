"""`manage.py trace CORRELATION_ID`: print the history of a correlation id as a tree (orders.trace)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from orders.management.find import find_order
from orders.trace import Node, Trace, is_known, read_trace


class Command(BaseCommand):
    help = (
        "Print the history of a correlation id: orders, changes, e-mails, attempts, deliveries and events,"
        " each below its cause. It works without a collector of traces."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "correlation_id",
            help="or the id or reference of the order that it placed",
        )

    def handle(self, *args: Any, correlation_id: str, **options: Any) -> None:
        trace = read_trace(correlation_id=_resolve(correlation_id))
        for line in _lines(trace):
            self.stdout.write(line)


def _resolve(text: str) -> str:
    """Return `text` if it is a known correlation id, or the correlation id of the order that it names.

    Raise `CommandError` if it is neither.
    """
    if is_known(correlation_id=text):
        return text
    order = find_order(text) if text else None
    if order is None:
        raise CommandError(
            f"No order or e-mail has the correlation id {text}, and no order has this id or reference."
            " For an e-mail of a detached month, give its order. For a trace id, give the correlation id of"
            " its log lines or spans."
        )
    if not order.correlation_id:
        raise CommandError(f"The order has no correlation id. Run manage.py timeline {order.id}")
    return order.correlation_id


def _lines(trace: Trace) -> Iterator[str]:
    times = sorted(_times(trace.orders))
    count = f"{len(trace.orders)} order{'s' if len(trace.orders) != 1 else ''}"
    span = f", {(times[-1] - times[0]).total_seconds():.3f} s from {times[0]:%Y-%m-%d} (UTC)" if times else ""
    yield f"Correlation id {trace.correlation_id}: {count}{span}"
    for trace_id in trace.trace_ids:
        yield f"Trace id {trace_id}"
    for order in trace.orders:
        yield from ("", f"{'':26}{order.text}")
        yield from _branches(order.children, "", times[0] if times else None)
    if trace.more_orders:
        yield f"and {trace.more_orders} more orders"


def _branches(nodes: Sequence[Node], indent: str, start: dt.datetime | None) -> Iterator[str]:
    for node in nodes:
        last = node is nodes[-1]
        when = ""
        if node.happened_at is not None and start is not None:
            when = (
                f"{node.happened_at:%H:%M:%S.%f}"[:-3]
                + f"{(node.happened_at - start).total_seconds():>+10.3f} s"
            )
        yield f"{when:<26}{indent}{'└─' if last else '├─'} {node.text}"
        yield from _branches(node.children, indent + ("   " if last else "│  "), start)


def _times(nodes: Sequence[Node]) -> Iterator[dt.datetime]:
    """Yield the times of all entries that have happened. Planned entries do not count in the duration."""
    for node in nodes:
        if node.happened_at is not None and not node.is_plan:
            yield node.happened_at
        yield from _times(node.children)
