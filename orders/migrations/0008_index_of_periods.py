from django.contrib.postgres.indexes import BrinIndex
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False  # CONCURRENTLY, because the table has writers

    dependencies = [
        ("orders", "0007_source"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="order",
            index=BrinIndex(
                fields=["created_at"],
                name="orders_created",
                opclasses=["timestamptz_minmax_multi_ops"],
                autosummarize=True,
                pages_per_range=32,
            ),
        ),
    ]
