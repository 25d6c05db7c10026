"""Messages from the broker: events of other services, each with one effect, and changes of our rows.

`inbox` records processed events. `cdc` reads Debezium's stream of our tables. The consumers' commands and the
apps' handlers import it.
"""
