"""`outbox.core.postgres`, the database backend's name in release 0.1.0, for settings that have it.

To be removed in 0.3.
"""
