"""The usual alternatives of a Django team: django-post_office, or a Celery task for each mail.

A Django project of its own, in a database next to ours, each configured as well as it can be.
"""
