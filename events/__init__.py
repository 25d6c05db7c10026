"""Domain events: ours go out to the broker (`publishing`), those of other services come in (`consuming`).

`models` has the tables, `transports` the brokers, `schemas` the contracts, and `pause_watch` notices a
person's pause. An app writes an event with `publishing.write` and hands in its handlers through
`consuming.handlers`.
"""
