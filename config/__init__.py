"""Composition root: settings, URLs, Celery, logs, and the processes. The apps never import it.

It has many modules: each is a process, a helper of the settings, or something that the settings name.
"""

from config.celery import app as celery_app

__all__ = ["celery_app"]
