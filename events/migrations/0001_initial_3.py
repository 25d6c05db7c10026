from django.db import migrations, models
from django.db.models import Func, Q, Value
from django.db.models.functions import Now

from retention.partitions.migrations import CreatePartitionedModel
from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        # All partitions share it. An identity column of a partitioned table would need PostgreSQL 17.
        migrations.RunSQL(
            "CREATE SEQUENCE outbox_events_position_seq AS bigint",
            "DROP SEQUENCE outbox_events_position_seq",
        ),
        # PARTITION BY RANGE (id), because an id begins with its time.
        CreatePartitionedModel(
            name="DomainEvent",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("aggregate_type", models.CharField(max_length=50)),
                ("aggregate_id", models.UUIDField()),
                ("event_type", models.CharField(max_length=100)),
                ("version", models.PositiveSmallIntegerField(default=1)),
                ("sequence", models.PositiveIntegerField()),
                ("payload", models.JSONField()),
                ("metadata", models.JSONField(default=dict)),
                (
                    "position",
                    models.BigIntegerField(
                        db_default=Func(Value("outbox_events_position_seq"), function="nextval"),
                        editable=False,
                    ),
                ),
                ("shard", models.PositiveSmallIntegerField()),
                ("retry_count", models.PositiveIntegerField(default=0)),
                ("next_attempt_at", models.DateTimeField(db_default=Now())),
                ("last_error", models.TextField(default="", blank=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("published_at", models.DateTimeField(null=True, editable=False)),
                ("dead_lettered_at", models.DateTimeField(null=True, editable=False)),
                ("discarded_at", models.DateTimeField(null=True, editable=False)),
            ],
            options={
                "db_table": "outbox_events",
                "permissions": [("resolve_domainevent", "Can republish and discard events")],
                "indexes": [
                    models.Index(
                        fields=["position"],
                        name="outbox_events_next",
                        condition=Q(published_at__isnull=True, dead_lettered_at__isnull=True),
                    ),
                    # Events that hold back later ones of their aggregate, which are few
                    models.Index(
                        fields=["shard"],
                        name="outbox_events_stuck",
                        condition=Q(published_at__isnull=True, discarded_at__isnull=True)
                        & (Q(dead_lettered_at__isnull=False) | Q(retry_count__gt=0)),
                    ),
                    models.Index(fields=["aggregate_id", "sequence"], name="outbox_events_aggregate"),
                ],
                "constraints": [
                    # The relays share these shards, and would never publish an event of another one.
                    models.CheckConstraint(condition=Q(shard__lt=64), name="outbox_events_shard_known"),
                    models.CheckConstraint(
                        condition=Q(published_at__isnull=True) | Q(dead_lettered_at__isnull=True),
                        name="outbox_events_published_is_not_dead",
                    ),
                    models.CheckConstraint(
                        condition=Q(discarded_at__isnull=True) | Q(dead_lettered_at__isnull=False),
                        name="outbox_events_discarded_was_dead",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ProcessedEvent",
            fields=[
                ("pk", models.CompositePrimaryKey("event_id", "consumer", serialize=False)),
                ("event_id", models.UUIDField()),
                ("consumer", models.CharField(max_length=100)),
                ("event_type", models.CharField(max_length=100)),
                ("source", models.CharField(max_length=100, default="")),
                ("receive_count", models.PositiveIntegerField(default=1)),
                ("processed_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "db_table": "processed_events",
                "indexes": [models.Index(fields=["processed_at"], name="processed_events_age")],
            },
        ),
        migrations.CreateModel(
            name="InboundDeadLetter",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("topic", models.CharField(max_length=255)),
                ("key", models.CharField(max_length=255, default="", blank=True)),
                ("event_id", models.UUIDField()),
                ("consumer", models.CharField(max_length=100)),
                ("envelope", models.TextField()),
                (
                    "is_exact",
                    models.BooleanField(
                        db_default=True,
                        help_text="Whether the envelope is exactly what came. Otherwise it was not UTF-8, had a NUL"
                        " character in it or was too long, and cannot be replayed: have its sender correct it and"
                        " send it again.",
                    ),
                ),
                ("error", models.TextField()),
                ("order_id", models.UUIDField(editable=False, null=True)),
                ("address_hashes", models.JSONField(default=list, db_default=[], editable=False)),
                ("failed_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("replay_requested_at", models.DateTimeField(null=True, editable=False)),
                ("replayed_at", models.DateTimeField(null=True, editable=False)),
                ("discarded_at", models.DateTimeField(null=True, editable=False)),
            ],
            options={
                "db_table": "inbound_dead_letters",
                "default_permissions": ("view",),
                "permissions": [("resolve_inbounddeadletter", "Can replay and discard events")],
                "indexes": [
                    models.Index(fields=["event_id"], name="inbound_dead_letters_event"),
                    models.Index(
                        fields=["consumer", "id"],
                        name="inbound_dead_letters_replay",
                        condition=Q(
                            replay_requested_at__isnull=False,
                            replayed_at__isnull=True,
                            discarded_at__isnull=True,
                        ),
                    ),
                    models.Index(
                        fields=["-id"],
                        name="inbound_dead_letters_open",
                        condition=Q(
                            replay_requested_at__isnull=True,
                            replayed_at__isnull=True,
                            discarded_at__isnull=True,
                        ),
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RefusedEvent",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("sender", models.CharField(max_length=100)),
                ("topic", models.CharField(max_length=100)),
                ("reason", models.CharField(max_length=300)),
                ("count", models.PositiveBigIntegerField()),
                ("first_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("last_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "db_table": "refused_events",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["sender", "topic", "reason"], name="refused_events_once")
                ],
            },
        ),
    ]
