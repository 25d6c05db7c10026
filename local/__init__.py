"""`make run`: all of orderpost on one machine, for a person who tries it, for tests and for benchmarks.

`stack` is one run; `servers` starts PostgreSQL and Valkey; `setup` and `lock` make .venv and its lock files.
The image does not contain this package. Only `make`, tests and benchmarks import it, because it may import
everything. It has thirteen modules, because each program of a local run is one.
"""
