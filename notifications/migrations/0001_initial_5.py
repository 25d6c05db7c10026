from django.contrib.postgres.indexes import BrinIndex, HashIndex
from django.db import migrations, models
from django.db.models import F, Q, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now, Upper
from django.db.models.lookups import Exact, IsNull

from retention.partitions.migrations import CreatePartitionedModel
from runtime.database.beginnings import any_case
from runtime.database.ids import new_id

REASONS = [
    *("provider", "retries", "lease", "age", "no_address", "restore"),
    *("overtaken", "trial", "person", "erasure", "suppressed"),
]


class Migration(migrations.Migration):
    initial = True

    dependencies = [("orders", "0001_initial_4")]

    operations = [
        # PARTITION BY RANGE (id), because an id begins with its time. Only the key of the partitions can be unique.
        CreatePartitionedModel(
            name="EmailNotification",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                # Without a constraint, because with one, work on partitions would lock the orders.
                (
                    "order",
                    models.ForeignKey(
                        "orders.Order",
                        on_delete=models.DO_NOTHING,
                        related_name="notifications",
                        db_constraint=False,
                        db_index=False,
                    ),
                ),
                ("event_type", models.CharField(max_length=50)),
                ("order_version", models.IntegerField(null=True, editable=False)),
                ("recipient_email", models.CharField(max_length=255)),
                ("to_name", models.CharField(max_length=255, default="", blank=True)),
                ("locale", models.CharField(max_length=35, default="en")),
                ("subject", models.CharField(max_length=255)),
                ("body", models.TextField()),
                ("body_text", models.TextField()),
                ("idempotency_key", models.CharField(max_length=255)),
                ("resend_of", models.UUIDField(null=True, editable=False)),
                (
                    "source",
                    models.CharField(max_length=100, default="", db_default="", blank=True, editable=False),
                ),
                ("profile", models.CharField(max_length=100, default="", db_default="", blank=True)),
                ("from_email", models.CharField(max_length=320, default="", db_default="", blank=True)),
                ("reply_to", models.CharField(max_length=320, default="", db_default="", blank=True)),
                ("text_versions", models.JSONField(null=True, editable=False)),
                ("is_private", models.BooleanField(default=False, db_default=False, editable=False)),
                ("shop_copy_of", models.UUIDField(null=True, editable=False)),
                (
                    "customer_email",
                    models.CharField(max_length=255, default="", db_default="", blank=True, editable=False),
                ),
                (
                    "status",
                    models.CharField(
                        max_length=20,
                        default="pending",
                        choices=[
                            ("pending", "Pending"),
                            ("processing", "Processing"),
                            ("sent", "Sent"),
                            ("failed", "Failed"),
                            ("dead_lettered", "Dead Lettered"),
                            ("suppressed", "Suppressed"),
                            ("discarded", "Discarded"),
                        ],
                    ),
                ),
                ("retry_count", models.PositiveIntegerField(default=0)),
                ("max_retries", models.PositiveIntegerField(default=3)),
                ("next_attempt_at", models.DateTimeField(db_default=Now())),
                ("claimed_at", models.DateTimeField(null=True, editable=False)),
                ("claim_token", models.UUIDField(null=True, editable=False)),
                ("is_awaited", models.BooleanField(db_default=False, editable=False)),
                (
                    "ended_by",
                    models.CharField(
                        max_length=20,
                        choices=[(reason, reason.replace("_", " ").title()) for reason in REASONS],
                        default="",
                        db_default="",
                        blank=True,
                    ),
                ),
                ("last_error", models.TextField(default="", blank=True)),
                ("errors", models.JSONField(default=list, blank=True)),
                ("provider", models.CharField(max_length=50, default="", blank=True)),
                ("provider_message_id", models.CharField(max_length=255, default="", blank=True)),
                ("correlation_id", models.CharField(max_length=128, default="", blank=True)),
                ("traceparent", models.CharField(max_length=64, default="", blank=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("sent_at", models.DateTimeField(null=True, editable=False)),
                ("resent_at", models.DateTimeField(null=True, editable=False)),
                ("readdressed_at", models.DateTimeField(null=True, editable=False)),
                ("delivered_at", models.DateTimeField(null=True, editable=False)),
                ("bounced_at", models.DateTimeField(null=True, editable=False)),
                ("complained_at", models.DateTimeField(null=True, editable=False)),
            ],
            options={
                "db_table": "email_notifications",
                "verbose_name": "e-mail",
                "permissions": [
                    ("resend_emailnotification", "Can resend e-mails"),
                    ("discard_emailnotification", "Can give up e-mails"),
                    ("copy_emailnotification", "Can send copies of e-mails"),
                    ("force_provider", "Can force a provider open or closed"),
                ],
                "indexes": [
                    models.Index(
                        fields=["next_attempt_at"],
                        name="emailnotification_due",
                        condition=Q(status__in=("pending", "failed")),
                    ),
                    models.Index(
                        fields=["claimed_at"],
                        name="emailnotification_lease",
                        condition=Q(status="processing"),
                    ),
                    models.Index(
                        fields=["-id"],
                        name="emailnotification_dead",
                        condition=Q(status="dead_lettered"),
                    ),
                    models.Index(
                        any_case("recipient_email"), F("id").desc(), name="emailnotification_address"
                    ),
                    models.Index(
                        Upper("customer_email"),
                        name="emailnotification_customer",
                        condition=~Q(customer_email=""),
                    ),
                    models.Index(fields=["order", "order_version"], name="emailnotification_order"),
                    HashIndex(fields=["correlation_id"], name="emailnotification_correlated"),
                    HashIndex(
                        fields=["provider_message_id"],
                        name="emailnotification_at_provider",
                        condition=~Q(provider_message_id=""),
                    ),
                    models.Index(
                        fields=["-id"],
                        name="emailnotification_suppressed",
                        condition=Q(status="suppressed"),
                    ),
                    models.Index(
                        fields=["-id"],
                        name="emailnotification_discarded",
                        condition=Q(status="discarded"),
                    ),
                    # The sums of each minute. Rows come almost in the order of these times, and further rows
                    # of a minute change no entry.
                    BrinIndex(
                        RawSQL("(date_bin('1 minute', sent_at, '2000-01-01 00:00+00'))", []),
                        RawSQL("(date_bin('1 minute', delivered_at, '2000-01-01 00:00+00'))", []),
                        RawSQL("(date_bin('1 minute', bounced_at, '2000-01-01 00:00+00'))", []),
                        name="emailnotification_minutes",
                        autosummarize=True,
                        pages_per_range=64,
                    ),
                    # The time of the last error. An index on updated_at would make each update write to all
                    # indexes.
                    models.Index(
                        RawSQL("((errors -> -1 ->> 'at') COLLATE \"C\")", []),
                        name="emailnotification_errors",
                        condition=~Q(errors=[]),
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(status__in=["pending", "processing", "sent", "failed"], ended_by="")
                        | Q(
                            status="dead_lettered",
                            ended_by__in=["provider", "retries", "lease", "age", "no_address", "restore"],
                        )
                        | Q(status="suppressed", ended_by__in=["suppressed", "erasure"])
                        | Q(status="discarded", ended_by__in=["overtaken", "trial", "person", "erasure"]),
                        name="emailnotification_reason",
                    ),
                    models.CheckConstraint(
                        condition=Q(
                            Exact(Exact(F("status"), Value("sent")), IsNull(F("sent_at"), False)),
                        ),
                        name="emailnotification_sent_has_its_time",
                    ),
                    # A claim without its token could not be settled, and one without its time would never
                    # expire.
                    models.CheckConstraint(
                        condition=Q(
                            Exact(Exact(F("status"), Value("processing")), IsNull(F("claim_token"), False)),
                            Exact(Exact(F("status"), Value("processing")), IsNull(F("claimed_at"), False)),
                        ),
                        name="emailnotification_claim_is_whole",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Suppression",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("address_hash", models.CharField(max_length=64, unique=True, editable=False)),
                (
                    "reason",
                    models.CharField(
                        max_length=20,
                        choices=[
                            ("hard_bounce", "the address bounced"),
                            ("complaint", "its owner complained"),
                            ("manual", "a person said so"),
                        ],
                    ),
                ),
                ("provider", models.CharField(max_length=50, default="", blank=True, editable=False)),
                ("notification_id", models.UUIDField(null=True, editable=False)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "db_table": "suppressions",
                "default_permissions": ("view", "add"),
                "permissions": [("lift_suppression", "Can lift suppressions")],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(reason__in=["hard_bounce", "complaint", "manual"]),
                        name="suppressions_reason_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MailProfile",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("source", models.CharField(max_length=100, unique=True, default="", blank=True)),
                ("from_email", models.CharField(max_length=320)),
                ("reply_to", models.CharField(max_length=320, default="", blank=True)),
                ("shop_name", models.CharField(max_length=200)),
                ("postal_address", models.CharField(max_length=500)),
                ("url", models.CharField(max_length=500, default="", blank=True)),
                ("default_locale", models.CharField(max_length=35, default="", blank=True)),
                ("time_zone", models.CharField(max_length=50, default="", blank=True)),
                ("colour", models.CharField(max_length=7, default="", blank=True)),
                ("logo_url", models.CharField(max_length=500, default="", blank=True)),
                ("copy_to", models.CharField(max_length=255, default="", blank=True)),
                ("account", models.JSONField(default=dict, blank=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={"db_table": "mail_profiles", "ordering": ["source"]},
        ),
        migrations.CreateModel(
            name="ProviderTest",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("provider", models.CharField(max_length=50)),
                ("address_hash", models.CharField(max_length=64)),
                ("accepted", models.BooleanField(null=True)),
                ("answer", models.TextField(default="", blank=True)),
                ("reported", models.CharField(max_length=50, default="", blank=True)),
                ("sent_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={"db_table": "provider_tests", "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="EmailText",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("source", models.CharField(max_length=100, default="", blank=True)),
                ("event_type", models.CharField(max_length=50)),
                ("locale", models.CharField(max_length=20)),
                ("sentences", models.JSONField(default=list)),
                ("published", models.PositiveIntegerField(null=True, editable=False)),
                ("edited_by", models.CharField(max_length=150, default="", blank=True)),
                ("edited_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "db_table": "email_texts",
                "default_permissions": ("view",),
                "permissions": [("edit_texts", "Can edit and publish the texts of e-mails")],
                "constraints": [
                    models.UniqueConstraint(fields=["source", "event_type", "locale"], name="email_texts_key")
                ],
            },
        ),
        migrations.CreateModel(
            name="EmailTextVersion",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "text",
                    models.ForeignKey(
                        "notifications.EmailText",
                        on_delete=models.PROTECT,
                        related_name="versions",
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("sentences", models.JSONField(default=list)),
                ("restored_from", models.PositiveIntegerField(null=True, editable=False)),
                ("published_by", models.CharField(max_length=150, default="", blank=True)),
                ("published_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "db_table": "email_text_versions",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["text", "number"], name="email_text_versions_number"),
                    models.CheckConstraint(
                        condition=Q(number__gt=0), name="email_text_versions_count_from_one"
                    ),
                ],
            },
        ),
    ]
