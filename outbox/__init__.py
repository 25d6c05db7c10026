"""The engine: it delivers rows, publishes and consumes events, and keeps the tables small.

Knows neither orders nor e-mails; all other packages may import it. Django and Celery find apps, metrics and
tasks by their names. pyproject.toml has the order of the folders: each imports only those below it.
"""
