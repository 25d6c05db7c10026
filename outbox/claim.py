"""Choose the rows that a drain claims next: how many, how many of them new, and how long due."""

from __future__ import annotations

import time

from notifications.models import EmailNotification
from outbox.gate.gate import Capacity
from outbox.lookback import Lookback
from runtime.telemetry import instruments

#: During a backlog, this share of the claimed rows are the newest first attempts.
FRESH_SHARE = 1 / 4


class Claims:
    """The claims of one drain, and its memory between two claims."""

    def __init__(self) -> None:
        self._seconds = instruments.CLAIMS.labels(EmailNotification._meta.db_table)
        self.lookback = Lookback()
        #: The fraction of a fresh row that earlier claims were too small to include.
        self._fresh_credit = 0.0

    def claim(self, capacity: Capacity) -> tuple[list[EmailNotification], bool]:
        """Claim rows for `capacity`. Return them, and whether more rows may be due."""
        began = time.monotonic()
        if capacity.is_untried_first:
            with self._seconds.time():
                untried = EmailNotification.objects.claim_untried()
            if untried:
                return untried, True
        if not capacity.is_retry_allowed:
            return [], False
        fresh = self._fresh(capacity.rows)
        lookback = self.lookback.seconds(now=began)
        with self._seconds.time():
            batch = EmailNotification.objects.claim(
                limit=capacity.rows, fresh=fresh, lookback_seconds=lookback
            )
        if not batch and fresh == capacity.rows:
            return [], True  # this claim was only for first attempts, and retries may be due
        # If only retries are due, the share of first attempts stays empty, but more rows may be due.
        least = capacity.rows - fresh if lookback is None else capacity.rows
        is_full = bool(batch) and len(batch) >= least
        if fresh < capacity.rows:  # so the last row of a full batch is one of the longest due
            self.lookback.note_claim(
                is_whole=lookback is None,
                began_at=began,
                ended_at=time.monotonic(),
                age_seconds=batch[-1].age_seconds if is_full else 0.0,
            )
        return batch, is_full

    def _fresh(self, rows: int) -> int:
        """Return how many of `rows` are fresh ones. The remainder counts for the next claim."""
        self._fresh_credit += rows * FRESH_SHARE
        fresh = min(int(self._fresh_credit), rows)
        self._fresh_credit -= fresh
        return fresh
