"""Read whether a person has paused the relay or the consumers, at most once a second."""

from __future__ import annotations

import math
import time

from runtime.models import Pause

SECONDS = 1.0


class PauseWatch:
    """The last answer for one relay or consumer."""

    def __init__(self, part: Pause.Part, *, using: str = "default") -> None:
        self._part, self._using = part, using
        self._asked_at = -math.inf
        self._holds = False

    def is_paused(self) -> bool:
        """Return whether the part is paused. The answer may be a second old."""
        if time.monotonic() - self._asked_at >= SECONDS:
            self._holds = Pause.objects.using(self._using).filter(part=self._part).exists()
            self._asked_at = time.monotonic()
        return self._holds
