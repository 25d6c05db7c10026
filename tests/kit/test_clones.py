"""The comparison of runs in fresh clones: what it reads out of a run, and what it concludes."""

from __future__ import annotations

from tests.kit.clones import Run, line, report

GREEN = """
random numbers: TESTS_SEED=271828
=========== 3576 passed, 44 skipped in 1247.67s (0:20:47) ============
"""
RED = """
random numbers: TESTS_SEED=314159
FAILED tests/orders/test_demo.py::test_it_sums[a b] - AssertionError: 1 == 2
ERROR tests/api/test_fuzz.py::test_it
2 failed, 3574 passed in 999.1s
make: *** [Makefile:33: test] Error 1
"""


def test_a_run_is_told_in_one_line():
    assert line(2, Run(0, 700.4, 650.0, GREEN)) == (
        "2: green, 700 s, 650 s of CPU, seed 271828: 3576 passed, 44 skipped"
    )
    assert line(3, Run(2, 10, 9, RED)).startswith("3: FAILED (2), 10 s")
    assert "no summary" in line(1, Run(2, 1, 1, "make: setup failed"))


def test_the_end_says_how_many_were_green_and_which_test_failed_how_often():
    said = report([Run(0, 100, 90, GREEN), Run(2, 300, 80, RED), Run(2, 200, 85, RED)])
    assert said.startswith("1 of 3 green; median 200 s, 85 s of CPU")
    assert "failed in 2: tests/orders/test_demo.py::test_it_sums[a b]\n" in said
    assert "failed in 2: tests/api/test_fuzz.py::test_it" in said
