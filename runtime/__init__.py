"""Parts of every process: database, loops, wake-ups, telemetry, jobs, conditions, and sums.

All other packages import it. It imports none of them.
"""
