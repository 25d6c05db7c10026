from django.contrib.postgres.indexes import GinIndex
from django.db import migrations, models
from django.db.models import F, Q
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ConnectionPost",
            fields=[
                ("id", models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False)),
                ("source", models.CharField(editable=False, max_length=100)),
                ("body", models.TextField(editable=False)),
                ("received_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("done_at", models.DateTimeField(editable=False, null=True)),
                ("reason", models.CharField(db_default="", default="", editable=False, max_length=1000)),
                (
                    "state",
                    models.CharField(
                        max_length=20,
                        choices=[
                            ("waiting", "Waiting"),
                            ("done", "Done"),
                            ("unusable", "Unusable"),
                            ("missing", "Missing"),
                        ],
                        default="waiting",
                        db_default="waiting",
                        editable=False,
                    ),
                ),
                ("due_at", models.DateTimeField(editable=False, null=True)),
                ("order_id", models.UUIDField(editable=False, null=True)),
                ("address_hashes", models.JSONField(default=list, db_default=[], editable=False)),
                ("modified_at", models.DateTimeField(editable=False, null=True)),
                ("address", models.CharField(db_default="", default="", editable=False, max_length=500)),
                ("is_history", models.BooleanField(db_default=False, default=False, editable=False)),
                ("reference", models.CharField(db_default="", default="", editable=False, max_length=100)),
            ],
            options={
                "verbose_name": "post of a shop",
                "verbose_name_plural": "posts of shops",
                "db_table": "connection_posts",
                "permissions": [("retry_connectionpost", "Can have posts of shops tried again")],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["received_at"], name="connection_posts_age"),
                    models.Index(
                        fields=["order_id"],
                        name="connection_posts_order",
                        condition=Q(order_id__isnull=False),
                    ),
                    GinIndex(fields=["address_hashes"], name="connection_posts_addresses"),
                    models.Index(
                        F("source"),
                        F("state"),
                        F("is_history").desc(),
                        F("id"),
                        condition=Q(state__in=["waiting", "unusable", "missing"]),
                        name="connection_posts_open",
                    ),
                    models.Index(
                        F("source"),
                        F("done_at").desc(),
                        condition=Q(done_at__isnull=False),
                        name="connection_posts_done",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(state="done", done_at__isnull=False)
                        | Q(state__in=["waiting", "unusable", "missing"], done_at=None),
                        name="connection_posts_done_has_its_time",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ShopConnection",
            fields=[
                ("id", models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False)),
                ("source", models.CharField(max_length=100, unique=True)),
                (
                    "platform",
                    models.CharField(
                        choices=[("woocommerce", "WooCommerce")], default="woocommerce", max_length=20
                    ),
                ),
                ("address", models.CharField(max_length=500)),
                ("addresses", models.JSONField(db_default=[], default=list, editable=False)),
                ("copies", models.JSONField(db_default=[], default=list, editable=False)),
                ("secret", models.TextField(editable=False)),
                ("api_key", models.TextField(db_default="", default="", editable=False)),
                ("api_secret", models.TextField(db_default="", default="", editable=False)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waits for the first post"),
                            ("trial", "trial: no e-mail leaves"),
                            ("live", "live"),
                            ("off", "off"),
                        ],
                        default="waiting",
                        editable=False,
                        max_length=20,
                    ),
                ),
                ("live_at", models.DateTimeField(editable=False, null=True)),
                ("parents", models.JSONField(db_default={}, default=dict, editable=False)),
                ("going_live", models.JSONField(editable=False, null=True)),
                ("statuses", models.JSONField(blank=True, default=dict)),
                ("last_post_at", models.DateTimeField(editable=False, null=True)),
                ("checked_at", models.DateTimeField(editable=False, null=True)),
                ("check_problem", models.TextField(db_default="", default="", editable=False)),
                ("tried_at", models.DateTimeField(editable=False, null=True)),
                ("unfinished", models.JSONField(editable=False, null=True)),
                ("refused_at", models.DateTimeField(editable=False, null=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "verbose_name": "connection",
                "db_table": "shop_connections",
                "ordering": ["source"],
                "default_permissions": ("view", "add", "change"),
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(state__in=["waiting", "trial", "live", "off"]),
                        name="shop_connections_state_known",
                    )
                ],
            },
        ),
    ]
