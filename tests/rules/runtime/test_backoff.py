"""How long a failure waits: pure arithmetic, as docs/reference/configuration.md promises it."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.process import backoff
from runtime.process.backoff import EQUAL_JITTER, FULL_JITTER, NO_JITTER, SLIGHT_JITTER, RetryPolicy


def test_the_examples_of_its_docstrings_are_true():
    assert doctest.testmod(backoff).failed == 0 and doctest.testmod(backoff).attempted == 4


@pytest.mark.parametrize(
    ("attempt", "longest"), [(1, 30.0), (2, 60.0), (3, 120.0), (7, 1920.0), (8, 3600.0), (500, 3600.0)]
)
def test_the_longest_wait_doubles_from_the_base_up_to_the_cap(attempt, longest):
    policy = RetryPolicy(base_seconds=30, cap_seconds=3600, jitter=NO_JITTER)
    assert policy.delay(attempt=attempt, chance=0.0) == longest


def test_an_enormous_retry_is_still_a_number():
    policy = RetryPolicy(base_seconds=0.001, cap_seconds=1e300, jitter=NO_JITTER)
    assert policy.delay(attempt=10**9, chance=0.0) == 0.001 * 2**62


@pytest.mark.parametrize("jitter", [NO_JITTER, EQUAL_JITTER, FULL_JITTER, SLIGHT_JITTER])
@given(seconds=st.floats(0.001, 1e6), chance=st.floats(0, 1, exclude_max=True))
def test_a_jittered_wait_lies_between_its_bounds(seconds, chance, jitter):
    for policy in (RetryPolicy(seconds, seconds, jitter=jitter), RetryPolicy(0, 0, (seconds,), jitter)):
        wait = policy.delay(attempt=1, chance=chance)
        assert seconds * jitter[0] <= wait <= seconds * jitter[1] * (1 + 1e-12)
