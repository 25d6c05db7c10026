from django.db import migrations, models
from django.db.models import Q

from retention.partitions.migrations import AddPartitionedIndex


class Migration(migrations.Migration):
    atomic = False  # build on each partition while clients write to it

    dependencies = [
        ("notifications", "0003_resent_at"),
    ]

    operations = [
        AddPartitionedIndex(
            model_name="emailnotification",
            index=models.Index(
                fields=["-id"], name=f"emailnotification_{status}", condition=Q(status=status)
            ),
        )
        for status in ("suppressed", "discarded")
    ]
