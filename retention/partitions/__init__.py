"""Partitions in PostgreSQL: their states, and how to make, detach and drop them.

The rest of retention, commands and readiness import it.
"""
