"""Parts of long-running processes: starts, loops, alarms, wake-ups, waits, memory, and the Redis client.

Every folder except telemetry and database may import it.
"""
