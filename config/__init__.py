"""Composition root: settings, URLs, Celery, logs, and the processes. The apps never import it.

Each module is a process, a helper of the settings, or a class that the settings name.
"""

from config.celery import app as celery_app

__all__ = ["celery_app"]
