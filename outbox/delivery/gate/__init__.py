"""Who may send now, over all processes: circuit breakers, the rate limit, and whose failure it was.

Senders ask `gate` before each send. The drain, an app's sender, metrics and the admin import it.
"""
