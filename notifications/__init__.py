"""E-mails: render one, record what its provider's webhooks prove, and show it to support staff.

`outbox` sends them. It imports nothing of orders, which hands over plain data. Django and operations find
apps, models, metrics, sums and bulk_actions by their names, so these modules are here and not in a folder.
"""
