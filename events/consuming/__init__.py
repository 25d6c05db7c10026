"""Messages from the broker: events of other services, each with one effect, and changes of our rows.

`inbox` records processed events. `cdc` wakes workers and relays when Debezium reports a row. The consumers'
commands and the apps' handlers import it.
"""
