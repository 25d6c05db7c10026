"""Bar charts as SVG, made on the server without scripts or style attributes. Screen readers get texts."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from runtime.charts.sums import Steps, Sums

WIDTH, HEIGHT = 10, 100  # the width of a bar and the height of the chart, in the chart's units
FLOOR = 0.01  # seconds at the bottom of the logarithmic scale of durations


def counts(
    series: str, *, title: str, steps: Steps, whole: Sums, step: dt.timedelta
) -> tuple[str, SafeString]:
    """Draw the counts of a series. Return their sum and the chart."""
    values = [None if sums is None else sums.count(series) for _, sums in steps]
    most = max((value or 0 for value in values), default=0)
    total = f"{whole.count(series):,}"

    def height(value: float) -> float:
        return HEIGHT * value / most if most else 0

    bars = _bars(steps, values, height=height, say=lambda value: f"{value:,.0f}", step=step, kind="bar")
    label = f"{title}: {total} in all, at most {most:,} in {_long(step)}"
    return total, _chart(bars, steps, label=label, top=f"{most:,}" if most else "")


def durations(
    series: str, *, title: str, steps: Steps, whole: Sums, step: dt.timedelta
) -> tuple[str, SafeString]:
    """Draw the median and the 99th percentile on a logarithmic scale. Return both as text, and the chart."""
    high = [None if sums is None else sums.quantile(series, share=0.99) or 0.0 for _, sums in steps]
    middle = [None if sums is None else sums.quantile(series, share=0.5) or 0.0 for _, sums in steps]
    most = max((value or 0.0 for value in high), default=0.0)

    def height(value: float) -> float:
        if value <= FLOOR:
            return 0
        return HEIGHT * math.log(value / FLOOR) / math.log(max(most, 1.0) / FLOOR)

    bars = _bars(
        steps, high, height=height, say=lambda value: f"p99 {seconds(value)}", step=step, kind="bar high"
    )
    bars += _bars(
        steps, middle, height=height, say=lambda value: f"p50 {seconds(value)}", step=step, kind="bar"
    )
    p50, p99 = whole.quantile(series, share=0.5), whole.quantile(series, share=0.99)
    number = "–" if p50 is None or p99 is None else f"{seconds(p50)} · {seconds(p99)}"
    label = f"{title}: p50 and p99 {number}, at most {seconds(most)} in {_long(step)}; logarithmic"
    return number, _chart(SafeString(bars), steps, label=label, top=seconds(most) if most else "")


def seconds(value: float) -> str:
    """Write a duration with two digits.

    >>> seconds(0.0841), seconds(1.23), seconds(95), seconds(4000), seconds(200_000)
    ('84 ms', '1.2 s', '95 s', '1.1 h', '2.3 d')
    """
    if value < 1:
        return f"{value * 1000:.0f} ms"
    for size, unit, limit in (
        (1, "s", 100),
        (60, "min", 3600),
        (3600, "h", 172_800),
        (86_400, "d", math.inf),
    ):
        if value < limit:
            amount = value / size
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    raise AssertionError


def _bars(
    steps: Steps,
    values: Sequence[float | None],
    *,
    height: Callable[[float], float],
    say: Callable[[float], str],
    step: dt.timedelta,
    kind: str,
) -> SafeString:
    rows = []
    for number, ((start, _), value) in enumerate(zip(steps, values, strict=True)):
        if value is None:
            rows.append((f"{number * WIDTH}", "gap", "0", f"{HEIGHT}", f"{_when(start, step)}: not summed"))
        elif value:
            tall = max(2.0, height(value))
            words = f"{_when(start, step)}: {say(value)}"
            rows.append((f"{number * WIDTH}", kind, f"{HEIGHT - tall:.1f}", f"{tall:.1f}", words))
    return format_html_join(
        "",
        '<rect x="{}" class="{}" y="{}" height="{}" width="9"><title>{}</title></rect>',
        rows,
    )


def _chart(bars: SafeString, steps: Steps, *, label: str, top: str) -> SafeString:
    first, last = (timezone.localtime(start) for start in (steps[0][0], steps[-1][0]))
    form = "%H:%M" if last - first < dt.timedelta(days=2) else "%-d %b"
    return format_html(
        '<div class="chart"><span class="chart-top">{}</span>'
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '<span class="chart-times"><span>{}</span><span>{}</span></span></div>',
        top,
        len(steps) * WIDTH,
        HEIGHT,
        label,
        bars,
        f"{first:{form}}",
        f"{last:{form}}",
    )


def _when(start: dt.datetime, step: dt.timedelta) -> str:
    here = timezone.localtime(start)
    return f"{here:%H:%M}" if step < dt.timedelta(hours=1) else f"{here:%-d %b %H:%M}"


def _long(step: dt.timedelta) -> str:
    minutes = int(step.total_seconds() // 60)
    if minutes == 1:
        return "a minute"
    return f"{minutes} minutes" if minutes < 60 else f"{minutes // 60} hours"
