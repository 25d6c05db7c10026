from django.conf import settings
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = [migrations.swappable_dependency(settings.AUTH_USER_MODEL)]

    operations = [
        migrations.CreateModel(
            name="Heartbeat",
            fields=[
                ("name", models.CharField(primary_key=True, serialize=False, max_length=50)),
                ("beat_at", models.DateTimeField(db_default=Now())),
                ("since", models.DateTimeField(db_default=Now())),
                ("kind", models.CharField(max_length=20, null=True)),
                ("host", models.CharField(max_length=100, null=True)),
                ("process", models.IntegerField(null=True)),
                ("release", models.CharField(max_length=50, null=True)),
                ("clock_ahead", models.FloatField(null=True)),
            ],
            options={"db_table": "heartbeats"},
        ),
        migrations.CreateModel(
            name="Pause",
            fields=[
                (
                    "part",
                    models.CharField(
                        primary_key=True,
                        serialize=False,
                        max_length=20,
                        choices=[
                            ("delivery", "Delivery"),
                            ("relay", "Relay"),
                            ("consumers", "Consumers"),
                        ],
                    ),
                ),
                ("reason", models.CharField(max_length=200, default="", blank=True)),
                ("username", models.CharField(max_length=150, default="", blank=True)),
                ("paused_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("restored_to", models.DateTimeField(null=True, editable=False)),
                ("reconciled_at", models.DateTimeField(null=True, editable=False)),
            ],
            options={
                "db_table": "pauses",
                "default_permissions": ("view",),
                "permissions": [("set_pause", "Can pause and resume delivery, relay and consumers")],
            },
        ),
        migrations.CreateModel(
            name="BulkJob",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "state",
                    models.CharField(
                        max_length=10,
                        default="running",
                        choices=[
                            ("running", "Running"),
                            ("done", "Done"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                        ],
                    ),
                ),
                ("action", models.CharField(max_length=50)),
                ("filter", models.JSONField(default=dict)),
                ("address", models.TextField(default="", db_default="", blank=True)),
                ("last_id", models.UUIDField(null=True)),
                ("reason", models.CharField(max_length=200, default="", blank=True)),
                (
                    "user",
                    models.ForeignKey(
                        settings.AUTH_USER_MODEL,
                        on_delete=models.SET_NULL,
                        related_name="+",
                        null=True,
                        db_constraint=False,
                        db_index=False,
                    ),
                ),
                ("username", models.CharField(max_length=150)),
                ("correlation_id", models.CharField(max_length=128, default="", blank=True)),
                ("total", models.PositiveIntegerField(null=True)),
                ("position", models.UUIDField(null=True)),
                ("done_count", models.PositiveIntegerField(default=0)),
                ("refused_count", models.PositiveIntegerField(default=0)),
                ("refusals", models.JSONField(default=dict)),
                ("refused_ids", models.JSONField(null=True)),
                ("result", models.BinaryField(null=True)),
                ("tries", models.SmallIntegerField(db_default=0)),
                ("error", models.TextField(default="", blank=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("finished_at", models.DateTimeField(null=True, editable=False)),
            ],
            options={
                "db_table": "bulk_jobs",
                "verbose_name": "background job",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        fields=["updated_at"], name="bulk_jobs_running", condition=Q(state="running")
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(state__in=["running", "done", "stopped", "failed"]),
                        name="bulk_jobs_state_known",
                    ),
                    models.CheckConstraint(
                        condition=Q(state="running", finished_at__isnull=True)
                        | (~Q(state="running") & Q(finished_at__isnull=False)),
                        name="bulk_jobs_finished_has_its_time",
                    ),
                    # A person's address must not outlive the job. A failed job may be restarted.
                    models.CheckConstraint(
                        condition=Q(address="") | Q(state__in=["running", "failed"]),
                        name="bulk_jobs_ended_has_no_address",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TrafficSum",
            fields=[
                ("pk", models.CompositePrimaryKey("span", "start", serialize=False)),
                ("span", models.PositiveSmallIntegerField()),
                ("start", models.DateTimeField()),
                ("counts", models.JSONField(default=dict)),
                ("spreads", models.JSONField(default=dict)),
                ("samples", models.JSONField(default=dict)),
            ],
            options={"db_table": "traffic_sums", "default_permissions": ()},
        ),
    ]
