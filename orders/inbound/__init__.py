"""Events and commands of other services, and what they do to orders.

`reading` reads them; `payments_and_stock`, `external` (orders that another system owns) and `commands` act.
The consumer's process, the metrics, the status and `make_topics` import it.
"""
