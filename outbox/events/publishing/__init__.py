"""From a row of `outbox_events` to the broker: written with its change, sent at least once, in order.

Apps call `publish`; `manage.py relay_outbox` runs `relay`; the admin and a command call `resend`.
"""
