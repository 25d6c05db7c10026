"""The report of a soak as text: what happened, a line for each day, and what did not stay flat."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tests.soak.samples import BOUNDS, MB, Sample
from tests.soak.week import Report

#: A day's columns: what was measured, the metric, and the unit that divides it.
COLUMNS = (
    ("all processes, MB of PSS", None, "pss", MB),
    ("open files", None, "files", 1.0),
    ("threads", None, "threads", 1.0),
    ("sessions of PostgreSQL", "postgres", "connections", 1.0),
    ("its tables, MB", "postgres", "tables", MB),
    ("of e-mails", "postgres", "e-mail tables", MB),
    ("of events", "postgres", "event tables", MB),
    ("dead rows", "postgres", "dead tuples", 1.0),
    ("slots", "postgres", "slots", 1.0),
    ("Valkey, MB", "valkey", "memory", MB),
    ("keys", "valkey", "keys", 1.0),
    ("logs, MB", "disk", "logs", MB),
    ("archives, kB", "disk", "archives", 1e3),
)


def value(sample: Sample, what: str | None, metric: str) -> float | None:
    """Return a sample's value, or for `what` None the sum over all processes. Return None without a value."""
    if what is not None:
        return sample.values.get(what, {}).get(metric)
    found = [metrics[metric] for metrics in sample.values.values() if "age" in metrics and metric in metrics]
    return sum(found) if found else None


def text(report: Report) -> str:
    """Return the report."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    answers = sorted(report.answers)
    length = f"{report.days} days of {report.day_seconds:.0f} s"
    yield f"seed {report.seed}, {length}, {report.rate:g} changes a second"
    yield (
        f"{report.changes} changes acknowledged ({report.retries} asked again), {report.mails} e-mails,"
        f" {report.events} events"
    )
    yield (
        f"{report.dead_lettered} dead letters resent, {report.erased} customers erased,"
        f" {report.archived_rows} rows archived"
    )
    if answers:
        yield (
            f"answers: {statistics.median(answers) * 1000:.0f} ms at the median,"
            f" {answers[int(len(answers) * 0.99)] * 1000:.0f} ms at the 99th percentile,"
            f" {answers[-1]:.1f} s at most"
        )
    gone = report.findings.events_gone_with_the_broker
    yield f"events repeated {report.findings.events_repeated}, gone with the broker's data {gone}"
    yield "  ".join(f"{kind}: {count}" for kind, count in report.findings.counts().items())
    for kind in report.findings.counts():
        yield from (f"  {kind}: {sentence}" for sentence in getattr(report.findings, kind)[:20])
    yield ""
    yield "| the median of day | " + " | ".join(name for name, *_ in COLUMNS) + " |"
    yield "| --- |" + " --- |" * len(COLUMNS)
    for day in range(report.days):
        since = day * report.day_seconds
        of_day = [one for one in report.samples if since <= one.at < since + report.day_seconds]
        cells = []
        for _, what, metric, unit in COLUMNS:
            found = [got for one in of_day if (got := value(one, what, metric)) is not None]
            cells.append(f"{statistics.median(found) / unit:,.{1 if unit > 1 else 0}f}" if found else "-")
        yield f"| {day + 1} | " + " | ".join(cells) + " |"
    yield ""
    yield f"{len(report.trends)} lines looked at, {len(report.growing)} grow:"
    shown = report.growing or sorted(report.trends, key=lambda one: one.growth / one.bound)[-8:]
    for one in shown:
        unit = MB if BOUNDS[one.metric][0] >= 1e6 else 1.0
        yield (
            f"  {one.what}, {one.metric}: {one.early / unit:.1f} to {one.late / unit:.1f}, growth"
            f" {one.growth / unit:+.2f} of {one.bound / unit:.2f} allowed, {one.samples} samples"
        )
