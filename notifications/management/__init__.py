"""The commands that send e-mails without a Celery worker. Only manage.py imports them."""
