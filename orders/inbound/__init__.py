"""Handle the events and commands of other services.

`reading` reads them. `payments`, `stock`, `external` (orders that another system owns) and `commands` decide
what they change. orders.subscriptions lists the handlers.
"""
