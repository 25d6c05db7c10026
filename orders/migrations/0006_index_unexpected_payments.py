from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("orders", "0005_unexpected_payments")]

    operations = [
        AddIndexConcurrently(
            "order",
            models.Index(
                fields=["unexpected_payment_at"],
                name="orders_unexpected_payment",
                condition=Q(source="", unexpected_payment_at__isnull=False),
            ),
        ),
    ]
