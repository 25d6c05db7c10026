"""Partitions in PostgreSQL: their names, bounds and states, and how to make, detach and drop them.

The rest of retention, commands, readiness and paging import it.
"""
