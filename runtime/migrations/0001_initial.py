import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Heartbeat",
            fields=[
                ("name", models.CharField(max_length=50, primary_key=True, serialize=False)),
                ("beat_at", models.DateTimeField(db_default=Now())),
                ("since", models.DateTimeField(db_default=Now())),
            ],
            options={
                "db_table": "heartbeats",
            },
        ),
        migrations.CreateModel(
            name="Pause",
            fields=[
                (
                    "part",
                    models.CharField(
                        choices=[
                            ("delivery", "e-mails are sent"),
                            ("relay", "events are published"),
                            ("consumers", "events of other services are processed"),
                        ],
                        max_length=20,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("reason", models.CharField(blank=True, default="", max_length=200)),
                ("username", models.CharField(blank=True, default="", max_length=150)),
                (
                    "paused_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                ("restored_to", models.DateTimeField(editable=False, null=True)),
                ("reconciled_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "db_table": "pauses",
                "permissions": [("set_pause", "Can pause and resume delivery, relay and consumers")],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="TrafficSum",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "span", "start", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("span", models.PositiveSmallIntegerField()),
                ("start", models.DateTimeField()),
                ("counts", models.JSONField(default=dict)),
                ("spreads", models.JSONField(default=dict)),
                ("samples", models.JSONField(default=dict)),
            ],
            options={
                "db_table": "traffic_sums",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="BulkJob",
            fields=[
                (
                    "id",
                    models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("done", "Done"),
                            ("stopped", "Stopped"),
                            ("failed", "Failed"),
                        ],
                        default="running",
                        max_length=10,
                    ),
                ),
                ("action", models.CharField(max_length=50)),
                ("filter", models.JSONField(default=dict)),
                ("address", models.TextField(blank=True, db_default="", default="")),
                ("last_id", models.UUIDField(null=True)),
                ("reason", models.CharField(blank=True, default="", max_length=200)),
                ("username", models.CharField(max_length=150)),
                ("correlation_id", models.CharField(blank=True, default="", max_length=128)),
                ("total", models.PositiveIntegerField(null=True)),
                ("position", models.UUIDField(null=True)),
                ("done_count", models.PositiveIntegerField(default=0)),
                ("refused_count", models.PositiveIntegerField(default=0)),
                ("refusals", models.JSONField(default=dict)),
                ("result", models.BinaryField(null=True)),
                ("tries", models.SmallIntegerField(db_default=0)),
                ("error", models.TextField(blank=True, default="")),
                (
                    "created_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                (
                    "updated_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                ("finished_at", models.DateTimeField(editable=False, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "background job",
                "db_table": "bulk_jobs",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "running")),
                        fields=["updated_at"],
                        name="bulk_jobs_running",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["running", "done", "stopped", "failed"])),
                        name="bulk_jobs_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("state", "running")),
                            models.Q(
                                models.Q(("state", "running"), _negated=True), ("finished_at__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="bulk_jobs_finished_has_its_time",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("address", ""), ("state__in", ["running", "failed"]), _connector="OR"
                        ),
                        name="bulk_jobs_ended_has_no_address",
                    ),
                ],
            },
        ),
    ]
