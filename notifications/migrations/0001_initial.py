import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.text
from django.db import migrations, models
from django.db.models.functions import Now

from retention.partitions.migrations import CreatePartitionedModel
from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("orders", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Suppression",
            fields=[
                (
                    "id",
                    models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("address_hash", models.CharField(editable=False, max_length=64, unique=True)),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("hard_bounce", "the address bounced"),
                            ("complaint", "its owner complained"),
                            ("manual", "a person said so"),
                        ],
                        max_length=20,
                    ),
                ),
                ("provider", models.CharField(blank=True, default="", editable=False, max_length=50)),
                ("notification_id", models.UUIDField(editable=False, null=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
            ],
            options={
                "db_table": "suppressions",
                "permissions": [("lift_suppression", "Can lift suppressions")],
                "default_permissions": ("view", "add"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("reason__in", ["hard_bounce", "complaint", "manual"])),
                        name="suppressions_reason_known",
                    )
                ],
            },
        ),
        CreatePartitionedModel(
            name="EmailNotification",
            fields=[
                (
                    "id",
                    models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("event_type", models.CharField(max_length=50)),
                ("recipient_email", models.CharField(max_length=255)),
                ("to_name", models.CharField(blank=True, default="", max_length=255)),
                ("locale", models.CharField(default="en", max_length=20)),
                ("subject", models.CharField(max_length=255)),
                ("body", models.TextField()),
                ("body_text", models.TextField()),
                ("idempotency_key", models.CharField(max_length=255)),
                ("resend_of", models.UUIDField(editable=False, null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("processing", "Processing"),
                            ("sent", "Sent"),
                            ("failed", "Failed"),
                            ("dead_lettered", "Dead Lettered"),
                            ("suppressed", "Suppressed"),
                            ("discarded", "Discarded"),
                        ],
                        default="pending",
                        max_length=20,
                    ),
                ),
                ("retry_count", models.PositiveIntegerField(default=0)),
                ("max_retries", models.PositiveIntegerField(default=3)),
                (
                    "next_attempt_at",
                    models.DateTimeField(db_default=Now()),
                ),
                ("claimed_at", models.DateTimeField(editable=False, null=True)),
                ("claim_token", models.UUIDField(editable=False, null=True)),
                ("last_error", models.TextField(blank=True, default="")),
                ("errors", models.JSONField(blank=True, default=list)),
                ("provider", models.CharField(blank=True, default="", max_length=50)),
                ("provider_message_id", models.CharField(blank=True, default="", max_length=255)),
                ("correlation_id", models.CharField(blank=True, default="", max_length=128)),
                ("traceparent", models.CharField(blank=True, default="", max_length=64)),
                (
                    "created_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                ("sent_at", models.DateTimeField(editable=False, null=True)),
                ("resent_at", models.DateTimeField(editable=False, null=True)),
                ("delivered_at", models.DateTimeField(editable=False, null=True)),
                ("bounced_at", models.DateTimeField(editable=False, null=True)),
                ("complained_at", models.DateTimeField(editable=False, null=True)),
                (
                    "order",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="notifications",
                        to="orders.order",
                    ),
                ),
            ],
            options={
                "db_table": "email_notifications",
                "permissions": [
                    ("resend_emailnotification", "Can resend e-mails"),
                    ("discard_emailnotification", "Can give up e-mails"),
                    ("copy_emailnotification", "Can send copies of e-mails"),
                    ("force_provider", "Can force a provider open or closed"),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("status__in", ("pending", "failed"))),
                        fields=["next_attempt_at"],
                        name="emailnotification_due",
                    ),
                    models.Index(
                        condition=models.Q(("status", "processing")),
                        fields=["claimed_at"],
                        name="emailnotification_lease",
                    ),
                    models.Index(
                        condition=models.Q(("status", "dead_lettered")),
                        fields=["-id"],
                        name="emailnotification_dead",
                    ),
                    models.Index(
                        django.db.models.functions.text.Upper("recipient_email"),
                        models.OrderBy(models.F("id"), descending=True),
                        name="emailnotification_any_case",
                    ),
                    models.Index(fields=["order"], name="emailnotification_order"),
                    django.contrib.postgres.indexes.HashIndex(
                        fields=["correlation_id"], name="emailnotification_correlated"
                    ),
                    django.contrib.postgres.indexes.HashIndex(
                        condition=models.Q(("provider_message_id", ""), _negated=True),
                        fields=["provider_message_id"],
                        name="emailnotification_at_provider",
                    ),
                    models.Index(
                        condition=models.Q(("status", "suppressed")),
                        fields=["-id"],
                        name="emailnotification_suppressed",
                    ),
                    models.Index(
                        condition=models.Q(("status", "discarded")),
                        fields=["-id"],
                        name="emailnotification_discarded",
                    ),
                    django.contrib.postgres.indexes.BrinIndex(
                        django.db.models.expressions.RawSQL(
                            "(date_bin('1 minute', sent_at, '2000-01-01 00:00+00'))", []
                        ),
                        django.db.models.expressions.RawSQL(
                            "(date_bin('1 minute', delivered_at, '2000-01-01 00:00+00'))", []
                        ),
                        django.db.models.expressions.RawSQL(
                            "(date_bin('1 minute', bounced_at, '2000-01-01 00:00+00'))", []
                        ),
                        autosummarize=True,
                        name="emailnotification_minutes",
                        pages_per_range=64,
                    ),
                    models.Index(
                        django.db.models.expressions.RawSQL("((errors -> -1 ->> 'at') COLLATE \"C\")", []),
                        condition=models.Q(("errors", []), _negated=True),
                        name="emailnotification_errors",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "pending",
                                    "processing",
                                    "sent",
                                    "failed",
                                    "dead_lettered",
                                    "suppressed",
                                    "discarded",
                                ],
                            )
                        ),
                        name="emailnotification_status_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("sent_at__isnull", False), ("status", "sent")),
                            models.Q(models.Q(("status", "sent"), _negated=True), ("sent_at__isnull", True)),
                            _connector="OR",
                        ),
                        name="emailnotification_sent_has_its_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("claim_token__isnull", False),
                                ("claimed_at__isnull", False),
                                ("status", "processing"),
                            ),
                            models.Q(
                                models.Q(("status", "processing"), _negated=True),
                                ("claim_token__isnull", True),
                                ("claimed_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="emailnotification_claim_is_whole",
                    ),
                ],
            },
        ),
    ]
