from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("orders", "0011_untold_shipments")]

    operations = [
        AddIndexConcurrently(
            "shipment",
            models.Index(
                fields=["untold_since"], name="shipments_untold", condition=Q(untold_since__isnull=False)
            ),
        ),
    ]
