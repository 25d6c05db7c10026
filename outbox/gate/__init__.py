"""The circuit breakers and the rate limit of all processes, and the senders that a provider refuses.

Sending threads ask `gate` before each send.
"""
