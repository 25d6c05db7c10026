"""Who may send now, over all processes: circuit breakers, the rate limit, and whose failure it was.

`gate` is the door; the drain, an app's sender and the admin use it.
"""
