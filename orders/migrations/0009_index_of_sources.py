from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # CONCURRENTLY, because the table has writers

    dependencies = [
        ("orders", "0008_index_of_periods"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                fields=["source", "-id"],
                name="orders_source",
                condition=models.Q(("source", ""), _negated=True),
            ),
        ),
    ]
