from django.db import migrations, models
from django.db.models import F, Q

from retention.partitions.migrations import AddPartitionedIndex


class Migration(migrations.Migration):
    atomic = False  # the index is built while others write

    dependencies = [("notifications", "0001_initial_5")]

    operations = [
        AddPartitionedIndex(
            "emailnotification",
            models.Index(
                F("source"), F("id").desc(), name="emailnotification_source", condition=~Q(source="")
            ),
        ),
        AddPartitionedIndex(
            "emailnotification",
            models.Index(
                F("source"),
                F("id").desc(),
                name="emailnotification_source_dead",
                condition=Q(status="dead_lettered") & ~Q(source=""),
            ),
        ),
    ]
