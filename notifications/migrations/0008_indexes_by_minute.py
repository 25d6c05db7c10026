import django.contrib.postgres.indexes
from django.db import migrations, models
from django.db.models.expressions import RawSQL

from retention.partitions.migrations import AddPartitionedIndex


class Migration(migrations.Migration):
    """The indexes of the sums of each minute."""

    atomic = False  # build on each partition while clients write to it

    dependencies = [
        ("notifications", "0007_index_of_causes"),
    ]

    operations = [
        AddPartitionedIndex(
            model_name="emailnotification",
            index=django.contrib.postgres.indexes.BrinIndex(
                *(
                    RawSQL(f"(date_bin('1 minute', {column}, '2000-01-01 00:00+00'))", [])  # noqa: S611
                    for column in ("sent_at", "delivered_at", "bounced_at")
                ),
                name="emailnotification_minutes",
                autosummarize=True,
                pages_per_range=64,
            ),
        ),
        AddPartitionedIndex(
            model_name="emailnotification",
            index=models.Index(
                RawSQL("""((errors -> -1 ->> 'at') COLLATE "C")""", []),
                name="emailnotification_errors",
                condition=~models.Q(errors=[]),
            ),
        ),
    ]
