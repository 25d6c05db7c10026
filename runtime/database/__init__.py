"""PostgreSQL: Django's backend with deadlines, statements, transactions, clock, ids, periods, and texts.

`save` locks a row and saves a change, and `partitions` tells which ones are attached. Every folder
except process and telemetry may import it. It imports none of them.
"""
