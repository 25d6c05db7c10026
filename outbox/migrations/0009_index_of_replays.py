from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False  # built beside its writers

    dependencies = [
        ("outbox", "0008_inbound_dead_letters"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="inbounddeadletter",
            index=models.Index(
                fields=["consumer", "id"],
                name="dead_events_replay",
                condition=Q(
                    replay_requested_at__isnull=False, replayed_at__isnull=True, discarded_at__isnull=True
                ),
            ),
        ),
    ]
