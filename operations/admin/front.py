"""The admin's first page: tiles about work for a person, charts of traffic, and panels of the apps.

Each app declares its parts in its admin modules with `@attention`, `show_series` and `@panel`. One statement
counts everything, and each count stops at `COUNT_LIMIT`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from django.http import HttpRequest

from operations.admin import charts
from runtime.charts.sums import Sums
from web.admin.rights import shops_of
from web.admin.tiles import ATTENTION, PANELS, RANGES, SERIES, FrontPage, bounded, count_each

#: Seconds between two refreshes of an open page.
REFRESH_SECONDS = 15
#: Panels with a lower place than the first are above the tiles, those below the second above the charts.
BELOW_TILES, BELOW_CHARTS = 10, 50


Part = TypeVar("Part")


def page(request: HttpRequest) -> dict[str, Any]:
    """Return the template context of the first page."""
    view = FrontPage.of(request)
    parts = [(place, source(request)) for place, source in _in_order(PANELS)]
    shown = tiles(request)
    return {
        "tiles": shown,
        "notes": [tile for tile in shown if not tile["bad"] and not tile["calm"]],
        "calm": [tile for tile in shown if tile["calm"]],
        "ranges": [
            {"key": key, "title": period.title, "here": period is view.range}
            for key, period in RANGES.items()
        ],
        "charts": _charts(request, view),
        "banners": [part for place, part in parts if place < BELOW_TILES],
        "urgent": [part for place, part in parts if BELOW_TILES <= place < BELOW_CHARTS],
        "panels": [part for place, part in parts if place >= BELOW_CHARTS],
        "now": view.now,
        "refresh_seconds": REFRESH_SECONDS,
    }


def _in_order(parts: Sequence[tuple[float, Part]]) -> list[tuple[float, Part]]:
    return sorted(parts, key=lambda placed: placed[0])


def tiles(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the tiles of all apps, the most severe first. Count their `rows` in one statement."""
    tiles = [tile for _, source in _in_order(ATTENTION) for tile in source(request)]
    rows = {id(tile): tile.rows for tile in tiles if tile.rows is not None}
    numbers = dict(zip(rows, count_each(rows.values()), strict=True))
    shown = []
    for tile in tiles:
        number = numbers.get(
            id(tile), 0 if tile.words else sum(int(condition.number) for condition in tile.conditions)
        )
        words = {
            "label": tile.label,
            "url": tile.url,
            "value": tile.words or bounded(number),
            "help": tile.help,
        }
        place = min((active.condition.place for active in tile.conditions), default=math.inf)
        bad = bool(tile.conditions)
        shown.append((place, words | {"bad": bad, "calm": not (bad or number or tile.words)}))
    return [words for _, words in _in_order(shown)]


def _charts(request: HttpRequest, view: FrontPage) -> list[dict[str, Any]]:
    allowed = [series for series in SERIES if request.user.has_perm(series.permission)]
    if not (allowed and shops_of(request).is_unbound):  # the sums are of all shops
        return []
    steps, step = view.steps(view.range), view.range.step
    whole = Sums.total(sums for _, sums in steps if sums is not None)
    drawn = []
    for series in sorted(allowed, key=lambda series: series.place):
        chart = charts.durations if series.has_durations else charts.counts
        number, svg = chart(series.name, title=series.title, steps=steps, whole=whole, step=step)
        url = series.list_url().replace("{age}", view.range.age)
        drawn.append({"title": series.title, "number": number, "svg": svg, "url": url, "tone": series.tone})
    return drawn
