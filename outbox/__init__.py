"""The engine: it delivers rows, publishes and consumes events, and keeps the tables small.

It imports neither orders nor notifications; all other packages may import it. Django, Celery and the engine
find apps, metrics, tasks and bulk_actions by their names. pyproject.toml has the order of the folders: each
imports only those below it.
"""
