"""Write events to `outbox_events` with their change, and send them to the broker at least once and in order.

An app calls `write`. The process of `manage.py relay_outbox` is `relay`; `shards` shares the work among
several, and `floor` keeps its queries fast. `resend` sends published events again.
"""
