"""Domain events: `publishing` sends ours to the broker, and `consuming` processes those of other services.

`transports` has the brokers, `schemas` the contracts, `models` the tables, and `pause_watch` notices a
pause. Apps write events with `publishing.write`. Django and operations find admin, metrics and
bulk_actions by their names.
"""
