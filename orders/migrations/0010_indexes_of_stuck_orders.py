from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # CONCURRENTLY, because the table has writers

    dependencies = [
        ("orders", "0009_index_of_sources"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                fields=["paid_at"],
                name="orders_unconfirmed",
                condition=models.Q(("source", ""), ("status", "paid")),
            ),
        ),
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                fields=["status", "stock_reserved_at"],
                name="orders_reserved",
                condition=models.Q(("source", ""), ("stock_reserved_at__isnull", False)),
            ),
        ),
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                fields=["updated_at"],
                name="orders_unrefunded",
                condition=models.Q(
                    ("paid_at__isnull", False),
                    ("refunded_amount__lt", models.F("total_amount")),
                    ("source", ""),
                    ("status", "cancelled"),
                ),
            ),
        ),
    ]
