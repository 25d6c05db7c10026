"""Write events to `outbox_events` with their change, and send them to the broker at least once and in order.

Apps use `write` to write an event. `manage.py relay_outbox` runs `relay`. The admin and a command use
`resend`.
"""
