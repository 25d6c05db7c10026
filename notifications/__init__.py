"""E-mails: render one, send it, record what its provider's webhooks prove, and show it to support staff.

It imports nothing of orders, which hands over plain data; orders and config import it. Django, Celery and the
engine find apps, models, tasks, metrics, sums and bulk_actions by their names, so these modules are here and
not in a folder.
"""
