"""PostgreSQL: Django's backend with deadlines, statements, transactions, clock, ids, periods, and texts.

`partitioned` is the base of partitioned tables. Every folder except process and telemetry may import it. It
imports none of them.
"""
