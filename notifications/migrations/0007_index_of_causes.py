from django.db import migrations, models
from django.db.models import Q

from retention.partitions.migrations import AddPartitionedIndex


class Migration(migrations.Migration):
    atomic = False  # build on each partition while clients write to it

    dependencies = [
        ("notifications", "0006_error_fingerprint"),
    ]

    operations = [
        AddPartitionedIndex(
            model_name="emailnotification",
            index=models.Index(
                fields=["error_fingerprint", "id"],
                name="emailnotification_causes",
                condition=Q(status="dead_lettered"),
            ),
        ),
    ]
