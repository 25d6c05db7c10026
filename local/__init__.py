"""`make run`: all of orderpost on one machine, for a person who tries it, for tests and for benchmarks.

`stack` starts and stops a run; `servers` starts PostgreSQL and Valkey; `setup` and `lock` make .venv and its
lock files. The image does not contain this package. Only `make`, tests and benchmarks import it, because it
may import everything. It has thirteen modules, because each is a program of `make` or one part of starting
and stopping a run.
"""
