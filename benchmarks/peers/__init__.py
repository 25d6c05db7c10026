"""What a Django team would otherwise use: django-post_office, or a Celery task for each mail.

A Django project of its own, in a database beside ours, each configured as well as it can be.
"""
