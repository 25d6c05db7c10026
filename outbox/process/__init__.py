"""What long-running processes are made of: loops, alarms, wake-ups, waits, memory, and the client of Redis.

Every folder but telemetry and database may import it.
"""
