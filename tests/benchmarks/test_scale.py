"""The simulation behind docs/explain/growth.md: repeatable, and right where the answer is known."""

from __future__ import annotations

import random

import pytest

from benchmarks.scale import RUNS
from benchmarks.simulation import Costs, Machine, Shop, System, Task


def test_it_gives_the_same_result_for_the_same_seed_and_another_for_another():
    one, same, other = (Shop(System(RUNS["8e30639"].costs), seed=seed) for seed in (1, 1, 2))
    found = one.run(rate=100, seconds=3)
    assert found == same.run(rate=100, seconds=3)
    assert found != other.run(rate=100, seconds=3)
    assert len(one.writes) == 600
    assert len(one.mails) == 300


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_it_keeps_one_core_as_busy_as_the_formula_of_a_single_server_says(load):
    """M/M/1: the mean time in the system is service / (1 - load), shared round robin or not."""
    machine, chance, service, seen = Machine(1), random.Random(7), 0.002, []

    def task() -> Task:
        began = machine.now
        yield "cpu", "one", chance.expovariate(1 / service)
        seen.append(machine.now - began)

    at = 0.0
    for _ in range(20_000):
        at += chance.expovariate(load / service)
        machine.at(at, lambda: machine.start(task()))
    machine.run(at * 2)
    assert len(seen) == 20_000
    assert machine.used["one"] / at == pytest.approx(load, rel=0.03)
    assert sum(seen) / len(seen) == pytest.approx(service / (1 - load), rel=0.08)


def test_it_leaves_what_the_cores_cannot_do_waiting():
    costs = Costs(web=0.016, postgres=0.004, worker=0.0, client=0.0)  # 2 cores: 100 orders a second at most
    shop = Shop(System(costs, stall=0.0), seed=1)
    found = shop.run(rate=200, seconds=10)
    assert found["cores used"] == pytest.approx(2, rel=0.02)
    assert found["requests waiting at the end"] > 1000
    assert len(shop.writes) == 4000  # all are answered in the end


def test_it_answers_all_at_once_where_nothing_costs_anything():
    shop = Shop(System(Costs(0.0, 0.0, 0.0, client=0.0), commit=0.0, stall=0.0), seed=1)
    found = shop.run(rate=50, seconds=4)
    assert found["write p99"] == 0
    assert len(shop.mails) == 200
    assert found["mail p99"] <= 250 + 100  # a wake-up and settling, no more
