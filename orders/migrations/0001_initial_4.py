from django.contrib.postgres.indexes import HashIndex
from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.functions import Now

from runtime.database.beginnings import any_case
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
                (
                    "fulfilment",
                    models.CharField(
                        max_length=20,
                        default="none",
                        db_default="none",
                        editable=False,
                        choices=[
                            ("none", "None"),
                            ("part_shipped", "Part Shipped"),
                            ("shipped", "Shipped"),
                            ("delivered", "Delivered"),
                        ],
                    ),
                ),
                ("version", models.PositiveIntegerField(default=1)),
                ("user_id", models.UUIDField()),
                ("email", models.CharField(max_length=254)),
                ("name", models.CharField(max_length=200, default="", blank=True)),
                ("locale", models.CharField(max_length=35, default="en")),
                ("reference", models.CharField(max_length=100, default="", blank=True)),
                (
                    "source",
                    models.CharField(max_length=100, default="", db_default="", blank=True, editable=False),
                ),
                ("items", models.JSONField(default=list, blank=True)),
                ("charges", models.JSONField(default=list, db_default=[], blank=True)),
                ("details", models.JSONField(default=dict, db_default={}, blank=True)),
                ("total_amount", models.BigIntegerField()),
                ("refunded_amount", models.BigIntegerField(default=0)),
                ("currency", models.CharField(max_length=3, default="USD")),
                ("warnings", models.JSONField(default=list, db_default=[], blank=True, editable=False)),
                ("correlation_id", models.CharField(max_length=128, default="", blank=True)),
                ("traceparent", models.CharField(max_length=55, default="", db_default="", editable=False)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("shop_key", models.CharField(db_default="", default="", editable=False, max_length=32)),
                ("reported_at", models.DateTimeField(null=True, editable=False)),
                ("paid_at", models.DateTimeField(null=True, editable=False)),
                ("stock_reserved_at", models.DateTimeField(null=True, editable=False)),
                ("completed_at", models.DateTimeField(null=True, editable=False)),
                ("untold_since", models.DateTimeField(null=True, editable=False)),
                ("address_corrected_at", models.DateTimeField(null=True, editable=False)),
                ("unexpected_payment_at", models.DateTimeField(null=True, editable=False)),
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
                        fields=["fulfilment", "created_at", "id"],
                        name="orders_fulfilment_newest",
                        condition=~Q(fulfilment="none"),
                    ),
                    models.Index(
                        any_case("reference"),
                        F("created_at").desc(),
                        F("id").desc(),
                        name="orders_reference",
                        condition=~Q(reference=""),
                    ),
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
                        fields=["status", "paid_at"],
                        name="orders_unshipped",
                        condition=Q(source="", status__in=["paid", "confirmed"], fulfilment="none"),
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
                    models.Index(
                        fields=["unexpected_payment_at"],
                        name="orders_unexpected_payment",
                        condition=Q(source="", unexpected_payment_at__isnull=False),
                    ),
                    HashIndex(fields=["correlation_id"], name="orders_correlation"),
                    models.Index(
                        any_case("email"), F("created_at").desc(), F("id").desc(), name="orders_email"
                    ),
                ],
                "constraints": [
                    # What another system reports is a fact, of whatever amount and currency.
                    models.CheckConstraint(
                        condition=Q(total_amount__gte=1, total_amount__lte=10**12) | ~Q(source=""),
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
                        condition=Q(currency__regex=r"^[A-Z]{3}$") | ~Q(source=""),
                        name="orders_currency_form",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OrderRefund",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "order",
                    models.ForeignKey(
                        to="orders.order",
                        on_delete=models.CASCADE,
                        db_constraint=False,
                        db_index=False,
                    ),
                ),
                ("refund_id", models.CharField(max_length=100, null=True)),
                ("amount", models.BigIntegerField()),
                ("way", models.CharField(max_length=10)),
                ("is_unexpected_payment", models.BooleanField(db_default=False)),
                ("at", models.DateTimeField()),
            ],
            options={
                "db_table": "refunds",
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=["order", "refund_id"], name="refunds_once")],
            },
        ),
        migrations.CreateModel(
            name="UnexpectedPayment",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, editable=False)),
                (
                    "order",
                    models.ForeignKey(
                        to="orders.order",
                        on_delete=models.CASCADE,
                        db_constraint=False,
                        db_index=False,
                    ),
                ),
                ("amount", models.BigIntegerField(null=True)),
                ("at", models.DateTimeField()),
                ("returned_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "unexpected_payments",
                "default_permissions": (),
                "indexes": [models.Index(fields=["order", "at"], name="unexpected_payments_of_order")],
            },
        ),
        migrations.CreateModel(
            name="Shipment",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "order",
                    models.ForeignKey(
                        to="orders.order",
                        on_delete=models.CASCADE,
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
                ("untold_since", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "shipments",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["shipped_at"], name="shipments_own", condition=Q(sequence=None)),
                    models.Index(
                        fields=["untold_since"],
                        name="shipments_untold",
                        condition=Q(untold_since__isnull=False),
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=["order", "reference"], name="shipments_once")
                ],
            },
        ),
    ]
