"""Run bulk jobs in tests."""

from __future__ import annotations

from outbox import bulk


def run_jobs() -> None:
    """Run batches until none is due, as workers do."""
    while bulk.run_batch():
        pass
