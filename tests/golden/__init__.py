"""The API's answers and rows, held to those of release 0.1.0.

`cases` is the one list of requests. `answers.json` has what release 0.1.0 answered and wrote, with ids and
times replaced. `differences` names what has been changed since, and why. To record again, copy this folder to
the tests of a checkout of the release: `GOLDEN=record .venv/bin/python -m pytest -n 0 tests/golden`.
"""
