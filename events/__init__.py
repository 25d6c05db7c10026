"""Domain events: `publishing` sends ours to the broker, and `consuming` processes those of other services.

`transports` has the brokers, `schemas` the contracts, and `pause_watch` notices a pause. Apps write events
with `publishing.publish`. Commands run the loops.
"""
