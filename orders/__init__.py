"""Orders: their states, the events and e-mails of each change, and what a person does with an order.

config and the benchmarks import it. Django and the engine find apps, models, metrics and sums by their names;
of the other thirteen modules, most serve the API, the admin, the commands and the inbound events alike.
"""
