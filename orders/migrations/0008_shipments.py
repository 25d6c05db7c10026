import django.db.models.deletion
from django.db import migrations, models

from runtime.database.ids import new_id

FULFILMENT = [
    ("none", "None"),
    ("part_shipped", "Part Shipped"),
    ("shipped", "Shipped"),
    ("delivered", "Delivered"),
]


class Migration(migrations.Migration):
    dependencies = [("orders", "0007_any_case")]

    operations = [
        # Every request writes to orders.
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "order",
            "fulfilment",
            models.CharField(
                max_length=20, choices=FULFILMENT, default="none", db_default="none", editable=False
            ),
        ),
        migrations.CreateModel(
            name="Shipment",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "order",
                    models.ForeignKey(
                        to="orders.order",
                        on_delete=django.db.models.deletion.CASCADE,
                        db_constraint=False,
                        db_index=False,
                    ),
                ),
                ("reference", models.CharField(max_length=100, null=True)),
                ("carrier", models.CharField(max_length=100, default="", blank=True)),
                ("tracking_number", models.CharField(max_length=100, default="", blank=True)),
                ("tracking_url", models.CharField(max_length=2000, default="", blank=True)),
                ("lines", models.JSONField(default=list, blank=True)),
                ("sequence", models.PositiveIntegerField(null=True)),
                ("shipped_at", models.DateTimeField(null=True)),
                ("delivered_at", models.DateTimeField(null=True)),
                ("returned_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "shipments",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["order", "reference"], name="shipments_once")
                ],
            },
        ),
    ]
