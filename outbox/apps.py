from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    name = "outbox"
    #: The permissions of the groups that migrate creates (`operations.apps.make_groups`).
    roles = {
        "viewer": [
            "outbox.view_outboxevent",
            "outbox.view_inbounddeadletter",
            "outbox.view_heartbeat",
            "outbox.view_detachedpartition",
            "outbox.view_bulkjob",
            "outbox.view_pause",
            "admin.view_logentry",
        ],
        "operator": ["outbox.resolve_outboxevent", "outbox.resolve_inbounddeadletter", "outbox.set_pause"],
    }
