"""Composition root: settings, URLs, Celery, logs. The apps below never import it."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
