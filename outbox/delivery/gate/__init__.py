"""The circuit breakers and the rate limit of all processes, and the judgement of failures.

Senders ask `gate` before each send. The drain, an app's sender, metrics and the admin import it.
"""
