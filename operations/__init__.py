"""The operator's view: the first page, status, probes, jobs, pauses, tokens, and the check after a restore.

Only config and local import it. Django and runtime find apps, admin and metrics by their names.
"""
