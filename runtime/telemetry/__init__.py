"""The telemetry of a process: the context of its work, traces, metrics, health, and log files.

Every other folder may import it. It imports none.
"""
