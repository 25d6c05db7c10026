import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("outbox", "0015_admin_log_by_time"),
    ]

    operations = [
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
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
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
    ]
