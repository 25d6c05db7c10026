"""Partitions in PostgreSQL: names and bounds, what exists, making, detaching, dropping, under locks."""
