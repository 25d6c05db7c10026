"""Partitions in PostgreSQL: their states, and how to make, detach and drop them."""
