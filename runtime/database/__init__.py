"""PostgreSQL: Django's backend with deadlines, statements, transactions, clock, ids, periods, and texts.

`save` locks a row and saves a change, and `partitioned` is the base of partitioned tables. Every folder
except process and telemetry may import it. It imports none of them.
"""
