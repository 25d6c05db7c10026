"""The last day of each provider, from the sums: a strip, and what it took and refused."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from outbox.admin.front import RANGES, View
from outbox.traffic import Steps, Sums


def with_history(request: HttpRequest, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each provider the last day: the strip, and how many e-mails it took and refused."""
    steps = View.of(request).steps(RANGES["day"])
    day = Sums.total(sums for _, sums in steps if sums is not None)
    return [
        line
        | {
            "strip": _strip(line["view"].provider, steps),
            "sent": day.count(f"sent:{line['view'].provider}"),
            "failed": day.count(f"failed:{line['view'].provider}"),
        }
        for line in lines
    ]


def _strip(provider: str, steps: Steps) -> SafeString:
    """Draw the last day: red where the breaker was open, orange where some attempts failed."""
    cells = []
    for number, (start, sums) in enumerate(steps):
        words = f"{start:%H:%M}: "
        if sums is None or f"open:{provider}" not in sums.samples:
            kind, said = "gap", "not recorded"
        elif minutes := sums.samples[f"open:{provider}"]:
            kind, said = "open", f"breaker open, {minutes} min"
        elif failed := sums.count(f"failed:{provider}"):
            kind, said = "some", f"{failed} failed"
        else:
            kind, said = "fine", f"{sums.count(f'sent:{provider}')} sent"
        cells.append((number * 10, kind, words + said))
    open_minutes = sum(sums.samples.get(f"open:{provider}", 0) for _, sums in steps if sums is not None)
    return format_html(
        '<svg class="strip" viewBox="0 0 {} 20" preserveAspectRatio="none" role="img"'
        ' aria-label="The last day of {}: breaker open for {} minutes">{}</svg>',
        len(steps) * 10,
        provider,
        open_minutes,
        format_html_join("", '<rect x="{}" class="{}" width="9" height="20"><title>{}</title></rect>', cells),
    )
