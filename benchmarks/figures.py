"""Percentiles and Markdown tables. It imports only the standard library."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie, or NaN without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. The first row is its head."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])
