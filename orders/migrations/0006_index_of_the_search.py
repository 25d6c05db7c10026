from django.contrib.postgres.indexes import HashIndex
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False  # CONCURRENTLY, because the table has writers

    dependencies = [
        ("orders", "0005_traceparent"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="order", index=HashIndex(fields=["correlation_id"], name="orders_correlation")
        ),
    ]
