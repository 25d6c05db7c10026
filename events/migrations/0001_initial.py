from django.db import migrations, models
from django.db.models.functions import Now

from retention.partitions.migrations import CreatePartitionedModel
from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        # No identity column: all partitions share the sequence.
        migrations.RunSQL(
            "CREATE SEQUENCE outbox_events_position_seq AS bigint",
            "DROP SEQUENCE outbox_events_position_seq",
        ),
        CreatePartitionedModel(
            name="DomainEvent",
            fields=[
                (
                    "id",
                    models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False),
                ),
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
                        db_default=models.Func(
                            models.Value("outbox_events_position_seq"), function="nextval"
                        ),
                        editable=False,
                    ),
                ),
                ("shard", models.PositiveSmallIntegerField()),
                ("retry_count", models.PositiveIntegerField(default=0)),
                (
                    "next_attempt_at",
                    models.DateTimeField(db_default=Now()),
                ),
                ("last_error", models.TextField(blank=True, default="")),
                (
                    "created_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                ("published_at", models.DateTimeField(editable=False, null=True)),
                ("dead_lettered_at", models.DateTimeField(editable=False, null=True)),
                ("discarded_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "db_table": "outbox_events",
                "permissions": [("resolve_domainevent", "Can republish and discard events")],
                "indexes": [
                    models.Index(
                        condition=models.Q(
                            ("dead_lettered_at__isnull", True), ("published_at__isnull", True)
                        ),
                        fields=["position"],
                        name="outbox_events_next",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("discarded_at__isnull", True),
                            ("published_at__isnull", True),
                            models.Q(
                                ("dead_lettered_at__isnull", False), ("retry_count__gt", 0), _connector="OR"
                            ),
                        ),
                        fields=["shard"],
                        name="outbox_events_stuck",
                    ),
                    models.Index(fields=["aggregate_id", "sequence"], name="outbox_events_aggregate"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("shard__lt", 64)), name="outbox_events_shard_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("published_at__isnull", True),
                            ("dead_lettered_at__isnull", True),
                            _connector="OR",
                        ),
                        name="outbox_events_published_is_not_dead",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("discarded_at__isnull", True),
                            ("dead_lettered_at__isnull", False),
                            _connector="OR",
                        ),
                        name="outbox_events_discarded_was_dead",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="InboundDeadLetter",
            fields=[
                (
                    "id",
                    models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("topic", models.CharField(max_length=255)),
                ("key", models.CharField(blank=True, default="", max_length=255)),
                ("event_id", models.UUIDField()),
                ("consumer", models.CharField(max_length=100)),
                ("envelope", models.TextField()),
                ("error", models.TextField()),
                (
                    "failed_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                ("replay_requested_at", models.DateTimeField(editable=False, null=True)),
                ("replayed_at", models.DateTimeField(editable=False, null=True)),
                ("discarded_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "db_table": "inbound_dead_letters",
                "permissions": [("resolve_inbounddeadletter", "Can replay and discard events")],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["event_id"], name="inbound_dead_letters_event"),
                    models.Index(
                        condition=models.Q(
                            ("discarded_at__isnull", True),
                            ("replay_requested_at__isnull", False),
                            ("replayed_at__isnull", True),
                        ),
                        fields=["consumer", "id"],
                        name="inbound_dead_letters_replay",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("discarded_at__isnull", True),
                            ("replay_requested_at__isnull", True),
                            ("replayed_at__isnull", True),
                        ),
                        fields=["-id"],
                        name="inbound_dead_letters_open",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ProcessedEvent",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "event_id", "consumer", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("event_id", models.UUIDField()),
                ("consumer", models.CharField(max_length=100)),
                ("event_type", models.CharField(max_length=100)),
                ("source", models.CharField(default="", max_length=100)),
                ("receive_count", models.PositiveIntegerField(default=1)),
                ("processed_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "db_table": "processed_events",
                "indexes": [models.Index(fields=["processed_at"], name="processed_events_age")],
            },
        ),
    ]
