"""Orders: their states, the events and e-mails of each change, and what a person does with an order.

Only config imports it. Django and the engine find apps, models, metrics and sums by their names; the other
twelve modules are what the API, the admin, the commands and the inbound events have in common.
"""
