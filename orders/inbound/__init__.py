"""Handle the events and commands of other services.

`reading` reads them. `payments_and_stock`, `external` (orders that another system owns) and `commands` change
orders and e-mails. The consumer's process, the metrics, the status and `make_topics` import this package.
"""
