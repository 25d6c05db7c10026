"""E-mails: how one is written, sent, judged by its provider's webhooks, and shown to the people who help.

It imports nothing of orders, which hands over plain data; orders and config import it. Django and the engine
find apps, models, checks, tasks, metrics, sums and bulk_actions by their names, so those seven lie here next
to eleven modules of its own.
"""
