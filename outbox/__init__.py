"""The engine delivers rows, publishes and consumes events, and keeps the tables small.

It imports neither orders nor notifications. All other packages may import it. Django, Celery and the engine
find apps, metrics, tasks and bulk_actions by their names. pyproject.toml lists the folders in order, and each
imports only those below it.
"""
