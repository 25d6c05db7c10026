from django.contrib.postgres.indexes import HashIndex
from django.db import migrations
from django.db.models import Q

from retention.partitions.migrations import AddPartitionedIndex


class Migration(migrations.Migration):
    """Indexes of the admin's search. Hash indexes suffice for equality and are smaller than B-trees."""

    atomic = False  # build on each partition while clients write to it

    dependencies = [
        ("notifications", "0008_indexes_by_minute"),
    ]

    operations = [
        AddPartitionedIndex(
            model_name="emailnotification",
            index=HashIndex(fields=["correlation_id"], name="emailnotification_correlated"),
        ),
        AddPartitionedIndex(
            model_name="emailnotification",
            index=HashIndex(
                fields=["provider_message_id"],
                name="emailnotification_at_provider",
                condition=~Q(provider_message_id=""),
            ),
        ),
    ]
