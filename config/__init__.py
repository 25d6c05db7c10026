"""Composition root: settings, URLs, Celery, logs, and the processes. The apps below never import it.

It has sixteen modules, because each is a process, a setting's helper or a middleware that settings name.
"""

from config.celery import app as celery_app

__all__ = ["celery_app"]
