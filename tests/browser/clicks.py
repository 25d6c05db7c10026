"""Count the clicks of the mouse on a page, and on all pages that they open."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from playwright.sync_api import Page

_COUNTS: WeakKeyDictionary[Page, int] = WeakKeyDictionary()
# `detail` is 0 if a key pressed the button.
_LISTEN = "addEventListener('click', (event) => { if (event.isTrusted && event.detail) noteClick(); }, true)"


def count_clicks(page: Page) -> None:
    """Begin to count. `clicks_on` returns the number."""

    def note(*_: Any) -> None:
        _COUNTS[page] = _COUNTS.get(page, 0) + 1

    page.expose_function("noteClick", note)
    page.add_init_script(_LISTEN)


def clicks_on(page: Page) -> int:
    """Return how often the mouse was clicked on a page since it was opened."""
    page.evaluate("0")  # after this, every earlier call of noteClick has arrived
    return _COUNTS.get(page, 0)
