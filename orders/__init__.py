"""Orders: their states, the events and e-mails of each change, and what a person can do with an order.

Only operations, config and the benchmarks import it from outside. Django and operations find apps, models,
sums and bulk_actions by their names. Most other modules are here because the API, the admin, the commands
and the inbound events share them.
"""
