"""Bar charts as SVG, readable on light and dark ground."""

from __future__ import annotations

from collections.abc import Mapping
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
