import django.contrib.postgres.indexes
import django.db.models.functions.text
from django.db import migrations, models
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("paid", "Paid"),
                            ("confirmed", "Confirmed"),
                            ("completed", "Completed"),
                            ("cancelled", "Cancelled"),
                            ("part_refunded", "Part Refunded"),
                            ("refunded", "Refunded"),
                        ],
                        default="pending",
                        max_length=20,
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1)),
                ("user_id", models.UUIDField()),
                ("email", models.CharField(max_length=254)),
                ("name", models.CharField(blank=True, default="", max_length=200)),
                ("locale", models.CharField(default="en", max_length=20)),
                ("reference", models.CharField(blank=True, default="", max_length=100)),
                (
                    "source",
                    models.CharField(blank=True, db_default="", default="", editable=False, max_length=100),
                ),
                ("items", models.JSONField(blank=True, default=list)),
                ("total_amount", models.BigIntegerField()),
                ("refunded_amount", models.BigIntegerField(default=0)),
                ("currency", models.CharField(default="USD", max_length=3)),
                ("correlation_id", models.CharField(blank=True, default="", max_length=128)),
                ("traceparent", models.CharField(db_default="", default="", editable=False, max_length=55)),
                (
                    "created_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                ("paid_at", models.DateTimeField(editable=False, null=True)),
                ("stock_reserved_at", models.DateTimeField(editable=False, null=True)),
                ("completed_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "db_table": "orders",
                "permissions": [
                    ("correct_address", "Can correct an order's address"),
                    ("export_person", "Can export a person's data"),
                    ("erase_person", "Can erase a person's data"),
                ],
                "indexes": [
                    models.Index(fields=["created_at", "id"], name="orders_newest"),
                    models.Index(fields=["user_id", "created_at", "id"], name="orders_user_newest"),
                    models.Index(fields=["status", "created_at", "id"], name="orders_status_newest"),
                    models.Index(
                        condition=models.Q(("reference", ""), _negated=True),
                        fields=["reference", "created_at", "id"],
                        name="orders_reference_newest",
                    ),
                    models.Index(
                        condition=models.Q(("source", ""), _negated=True),
                        fields=["source", "created_at", "id"],
                        name="orders_source_newest",
                    ),
                    models.Index(
                        condition=models.Q(("source", ""), _negated=True),
                        fields=["source", "status", "created_at", "id"],
                        name="orders_source_status_newest",
                    ),
                    models.Index(
                        condition=models.Q(("source", ""), ("status", "paid")),
                        fields=["paid_at"],
                        name="orders_unconfirmed",
                    ),
                    models.Index(
                        condition=models.Q(("source", ""), ("stock_reserved_at__isnull", False)),
                        fields=["status", "stock_reserved_at"],
                        name="orders_reserved",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("paid_at__isnull", False),
                            ("refunded_amount__lt", models.F("total_amount")),
                            ("source", ""),
                            ("status", "cancelled"),
                        ),
                        fields=["updated_at"],
                        name="orders_unrefunded",
                    ),
                    django.contrib.postgres.indexes.HashIndex(
                        fields=["correlation_id"], name="orders_correlation"
                    ),
                    models.Index(
                        django.db.models.functions.text.Upper("email"),
                        models.F("created_at"),
                        models.F("id"),
                        name="orders_email_newest",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "pending",
                                    "paid",
                                    "confirmed",
                                    "completed",
                                    "cancelled",
                                    "part_refunded",
                                    "refunded",
                                ],
                            )
                        ),
                        name="orders_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("total_amount__gte", 1), ("total_amount__lte", 1000000000000)),
                        name="orders_total_in_range",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("refunded_amount__gte", 0), ("refunded_amount__lte", models.F("total_amount"))
                        ),
                        name="orders_refund_within_total",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("refunded_amount", models.F("total_amount")), ("status", "refunded")),
                            models.Q(
                                ("refunded_amount__gt", 0),
                                ("status", "part_refunded"),
                                ("refunded_amount__lt", models.F("total_amount")),
                            ),
                            ("status", "cancelled"),
                            models.Q(
                                ("refunded_amount", 0),
                                ("status__in", ["pending", "paid", "confirmed", "completed"]),
                            ),
                            _connector="OR",
                        ),
                        name="orders_refund_fits_status",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("currency__regex", "^[A-Z]{3}$")), name="orders_currency_form"
                    ),
                ],
            },
        ),
    ]
