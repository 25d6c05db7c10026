"""E-mails: how one is written, sent, judged by its provider's webhooks, and shown to the people who help.

Knows of an order no more than its id. `services` is for orders; config and the pages import the rest. Django
and the engine find apps, models, admin, checks, tasks, metrics, sums and bulk_actions by their names, so
these eight lie here next to ten modules of its own.
"""
