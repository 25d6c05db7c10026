"""Composition root: settings, URLs, Celery, logs, and the processes. The apps below never import it.

It has seventeen modules, because settings, processes and WSGI servers name each of them.
"""

from config.celery import app as celery_app

__all__ = ["celery_app"]
