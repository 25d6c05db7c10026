from django.db import migrations, models
from django.db.models import Q

from retention.partitions.migrations import AddPartitionedIndex


class Migration(migrations.Migration):
    atomic = False  # built on each partition beside its writers

    dependencies = [
        ("outbox", "0004_relay_and_inbox"),
    ]

    operations = [
        AddPartitionedIndex(
            model_name="outboxevent",
            index=models.Index(
                fields=["position"],
                name="outbox_events_next",
                condition=Q(published_at__isnull=True, dead_lettered_at__isnull=True),
            ),
        ),
        migrations.RunSQL("SET lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.RemoveIndex(model_name="outboxevent", name="outbox_events_unpublished"),
        migrations.RunSQL("RESET lock_timeout", migrations.RunSQL.noop),
        AddPartitionedIndex(
            model_name="outboxevent",
            index=models.Index(
                fields=["shard"],
                name="outbox_events_stuck",
                condition=Q(published_at__isnull=True, discarded_at__isnull=True)
                & (Q(dead_lettered_at__isnull=False) | Q(retry_count__gt=0)),
            ),
        ),
    ]
