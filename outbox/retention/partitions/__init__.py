"""Partitions in PostgreSQL: names and bounds, what exists, making, detaching, dropping, under locks.

The rest of retention, commands, readiness and paging import it.
"""
