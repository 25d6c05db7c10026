"""Orders: their states, the events and e-mails of each change, and what a person can do with an order.

Only config and the benchmarks import it from outside. Django and the engine find apps, models, metrics and
sums by their names. Most other modules are here because the API, the admin, the commands and the inbound
events share them.
"""
