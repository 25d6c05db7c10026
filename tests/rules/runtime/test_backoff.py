"""How long a failure waits: pure arithmetic, as docs/reference/configuration.md promises it."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.process import backoff


def test_the_examples_of_its_docstrings_are_true():
    assert doctest.testmod(backoff).failed == 0 and doctest.testmod(backoff).attempted == 2


@pytest.mark.parametrize(
    ("retry", "longest"), [(1, 30.0), (2, 60.0), (3, 120.0), (7, 1920.0), (8, 3600.0), (500, 3600.0)]
)
def test_the_longest_wait_doubles_from_the_base_up_to_the_cap(retry, longest):
    assert backoff.compute_ceiling(retry=retry, base_seconds=30, cap_seconds=3600) == longest


def test_an_enormous_retry_is_still_a_number():
    assert backoff.compute_ceiling(retry=10**9, base_seconds=0.001, cap_seconds=1e300) == 0.001 * 2**62


@given(seconds=st.floats(0.001, 1e6), chance=st.floats(0, 1, exclude_max=True))
def test_a_jittered_wait_lies_between_its_bounds(seconds, chance):
    assert 0 <= backoff.add_jitter(seconds=seconds, low=0, high=1, chance=chance) <= seconds
    assert seconds * 0.5 <= backoff.add_jitter(seconds=seconds, low=0.5, high=1, chance=chance) <= seconds
