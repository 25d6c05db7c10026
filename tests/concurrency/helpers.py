"""Threads that start together, each with a database connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections

T = TypeVar("T")


def together(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0)` … `work(count - 1)` at the same moment and return what each gave; errors are raised."""
    barrier = threading.Barrier(count)

    def run(number: int) -> T:
        try:
            barrier.wait(30)
            return work(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return [future.result(60) for future in [pool.submit(run, number) for number in range(count)]]
