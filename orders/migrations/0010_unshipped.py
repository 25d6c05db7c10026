from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("orders", "0009_reported_at")]

    operations = [
        AddIndexConcurrently(
            "shipment",
            models.Index(fields=["shipped_at"], name="shipments_own", condition=Q(sequence=None)),
        ),
        AddIndexConcurrently(
            "order",
            models.Index(
                fields=["status", "paid_at"],
                name="orders_unshipped",
                condition=Q(source="", status__in=["paid", "confirmed"], fulfilment="none"),
            ),
        ),
        AddIndexConcurrently(
            "order",
            models.Index(
                fields=["fulfilment", "created_at", "id"],
                name="orders_fulfilment_newest",
                condition=~Q(fulfilment="none"),
            ),
        ),
        RemoveIndexConcurrently("order", "orders_unconfirmed"),
    ]
