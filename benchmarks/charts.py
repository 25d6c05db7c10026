"""Two kinds of chart as SVG, readable on light and dark ground: bars, and lines over a rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

_COLOURS = ("#0d9488", "#6366f1", "#d97706", "#db2777", "#64748b", "#0284c7")
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    ' font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="{title}">'
    '<rect width="100%" height="100%" rx="8" fill="#fff"/>'
    '<text x="16" y="26" font-size="15" font-weight="600">{title}</text>'
)


def bars(path: Path, *, title: str, unit: str, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a group of horizontal bars for each key of `groups`."""
    largest = max(value for group in groups.values() for value in group.values())
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    y, parts = 48, []
    for label, group in groups.items():
        parts.append(f'<text x="16" y="{y + 4}" font-weight="600">{escape(label)}</text>')
        y += 14
        for name, value in group.items():
            width = max(2.0, value / largest * 380)
            colour = _COLOURS[names.index(name) % len(_COLOURS)]
            parts.append(
                f'<text x="216" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
                f'<rect x="224" y="{y}" width="{width:.0f}" height="17" rx="3" fill="{colour}"/>'
                f'<text x="{230 + width:.0f}" y="{y + 13}">{value:,.0f} {escape(unit)}</text>'
            )
            y += 22
        y += 16
    head = _HEAD.format(width=720, height=y, title=escape(title))
    path.write_text(head + "".join(parts) + "</svg>\n")


def lines(
    path: Path,
    *,
    title: str,
    unit: str,
    x_unit: str,
    bar: float,
    series: Mapping[str, Sequence[tuple[float, float]]],
) -> None:
    """Draw values over a rate, and a dashed line at what they are held to."""
    points = [point for line in series.values() for point in line]
    right = max(x for x, _ in points) * 1.05
    top = max(bar, *(y for _, y in points)) * 1.1

    def place(x: float, y: float) -> tuple[float, float]:
        return 60 + x / right * 600, 300 - y / top * 240

    parts = ['<path d="M60 60V300H664" fill="none" stroke="#94a3b8"/>']
    _, level = place(0, bar)
    parts.append(
        f'<path d="M60 {level:.0f}H660" stroke="#dc2626" stroke-dasharray="5 4"/>'
        f'<text x="66" y="{level - 5:.0f}" fill="#dc2626">{bar:g} {escape(unit)}</text>'
    )
    for x in sorted({x for x, _ in points}):
        at, _ = place(x, 0)
        parts.append(f'<text x="{at:.0f}" y="318" text-anchor="middle">{x:g}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number]
        dots = [place(x, y) for x, y in line]
        path_data = "M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in dots)
        parts.append(f'<path d="{path_data}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{colour}"/>' for x, y in dots]
        parts.append(f'<text x="{560 - 90 * number}" y="48" fill="{colour}">{escape(name)}</text>')
    parts.append(f'<text x="360" y="340" text-anchor="middle">{escape(x_unit)}</text>')
    head = _HEAD.format(width=720, height=352, title=escape(title))
    path.write_text(head + "".join(parts) + "</svg>\n")
