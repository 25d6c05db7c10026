"""The circuit breakers and the rate limit of all processes, and the judgement of failures.

Sending threads ask `gate` before each send. The drain, metrics and the admin import it.
"""
