"""`make run`: all of orderpost on one machine, for a person who tries it, for tests and for benchmarks.

`stack` starts and stops a run, `servers` starts PostgreSQL and Valkey, and `setup.sh` makes .venv. This
package may import everything, and only `make`, tests and benchmarks may import it. The image does not contain
it. It has many modules: each is a program of `make` or one part of a run.
"""
