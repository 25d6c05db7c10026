"""Messages from the broker: events of other services, each with one effect, and changes of our own rows.

`inbox` keeps what was processed; `cdc` is Debezium's stream of our tables. The consumers' commands and the
apps' handlers import it.
"""
