"""Domain events: `publishing` sends them to the broker, `consuming` processes those of others.

`transports` are the brokers, `schemas` the contracts, `pause_watch` a person's pause. Apps write events with
`publishing.publish`; commands run the loops.
"""
