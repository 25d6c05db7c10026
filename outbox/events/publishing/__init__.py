"""From a row of `outbox_events` to the broker: written with its change, sent at least once, in order.

Apps use `publish` to write an event; `manage.py relay_outbox` runs `relay`; the admin and a command use
`resend`.
"""
