from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False  # built beside its writers

    dependencies = [
        ("outbox", "0013_role_grants"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="inbounddeadletter",
            index=models.Index(
                fields=["-id"],
                name="dead_events_open",
                condition=Q(
                    replay_requested_at__isnull=True, replayed_at__isnull=True, discarded_at__isnull=True
                ),
            ),
        ),
    ]
