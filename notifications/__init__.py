"""E-mails: render one, record what its provider's webhooks prove, and show it to support staff.

`outbox` sends them. A change makes its e-mails with `new_emails`, which `rendering` renders. `models` has the
table, `states` what may happen to a row, and `providers` everything that differs between providers. It
imports nothing of orders, which hands over plain data.
"""
