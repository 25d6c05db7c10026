from django.contrib.postgres.indexes import HashIndex
from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.functions import Now, Upper

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "status",
                    models.CharField(
                        max_length=20,
                        default="pending",
                        choices=[
                            ("pending", "Pending"),
                            ("paid", "Paid"),
                            ("confirmed", "Confirmed"),
                            ("completed", "Completed"),
                            ("cancelled", "Cancelled"),
                            ("part_refunded", "Part Refunded"),
                            ("refunded", "Refunded"),
                        ],
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1)),
                ("user_id", models.UUIDField()),
                ("email", models.CharField(max_length=254)),
                ("name", models.CharField(max_length=200, default="", blank=True)),
                ("locale", models.CharField(max_length=20, default="en")),
                ("reference", models.CharField(max_length=100, default="", blank=True)),
                (
                    "source",
                    models.CharField(max_length=100, default="", db_default="", blank=True, editable=False),
                ),
                ("items", models.JSONField(default=list, blank=True)),
                ("total_amount", models.BigIntegerField()),
                ("refunded_amount", models.BigIntegerField(default=0)),
                ("currency", models.CharField(max_length=3, default="USD")),
                ("correlation_id", models.CharField(max_length=128, default="", blank=True)),
                ("traceparent", models.CharField(max_length=55, default="", db_default="", editable=False)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("paid_at", models.DateTimeField(null=True, editable=False)),
                ("stock_reserved_at", models.DateTimeField(null=True, editable=False)),
                ("completed_at", models.DateTimeField(null=True, editable=False)),
            ],
            options={
                "db_table": "orders",
                "permissions": [
                    ("correct_address", "Can correct an order's address"),
                    ("export_person", "Can export a person's data"),
                    ("erase_person", "Can erase a person's data"),
                ],
                "indexes": [
                    # Ascending, because rows come in this order and fill the pages. Lists read them backwards.
                    models.Index(fields=["created_at", "id"], name="orders_newest"),
                    models.Index(fields=["user_id", "created_at", "id"], name="orders_user_newest"),
                    models.Index(fields=["status", "created_at", "id"], name="orders_status_newest"),
                    models.Index(
                        fields=["reference", "created_at", "id"],
                        name="orders_reference_newest",
                        condition=~Q(reference=""),
                    ),
                    # A token that is bound to a source lists that system's orders alone.
                    models.Index(
                        fields=["source", "created_at", "id"],
                        name="orders_source_newest",
                        condition=~Q(source=""),
                    ),
                    models.Index(
                        fields=["source", "status", "created_at", "id"],
                        name="orders_source_status_newest",
                        condition=~Q(source=""),
                    ),
                    # Stuck orders, which are few, by the time at which they stopped
                    models.Index(
                        fields=["paid_at"],
                        name="orders_unconfirmed",
                        condition=Q(source="", status="paid"),
                    ),
                    models.Index(
                        fields=["status", "stock_reserved_at"],
                        name="orders_reserved",
                        condition=Q(source="", stock_reserved_at__isnull=False),
                    ),
                    models.Index(
                        fields=["updated_at"],
                        name="orders_unrefunded",
                        condition=Q(
                            source="",
                            status="cancelled",
                            paid_at__isnull=False,
                            refunded_amount__lt=F("total_amount"),
                        ),
                    ),
                    HashIndex(fields=["correlation_id"], name="orders_correlation"),
                    models.Index(Upper("email"), "created_at", "id", name="orders_email_newest"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(total_amount__gte=1, total_amount__lte=10**12),
                        name="orders_total_in_range",
                    ),
                    # A cancelled order may be refunded in parts, and stays cancelled.
                    models.CheckConstraint(
                        condition=Q(status="refunded", refunded_amount=F("total_amount"))
                        | (
                            Q(status="part_refunded", refunded_amount__gt=0)
                            & Q(refunded_amount__lt=F("total_amount"))
                        )
                        | Q(
                            status="cancelled", refunded_amount__gte=0, refunded_amount__lte=F("total_amount")
                        )
                        | Q(status__in=["pending", "paid", "confirmed", "completed"], refunded_amount=0),
                        name="orders_refund_fits_status",
                    ),
                    models.CheckConstraint(
                        condition=Q(currency__regex=r"^[A-Z]{3}$"), name="orders_currency_form"
                    ),
                ],
            },
        ),
    ]
