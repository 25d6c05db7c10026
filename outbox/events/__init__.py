"""Domain events: `publishing` sends them to the broker, `consuming` processes those of others.

`transports` are the brokers and `schemas` the contracts. Apps call `publishing.publish`; commands run the
loops.
"""
