from django.db import migrations, models
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = [("admin", "0003_logentry_add_action_flag_choices")]

    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                (
                    "id",
                    models.UUIDField(default=new_id, editable=False, primary_key=True, serialize=False),
                ),
                ("name", models.CharField(max_length=100)),
                ("prefix", models.CharField(editable=False, max_length=12)),
                ("digest", models.CharField(editable=False, max_length=64, unique=True)),
                ("scopes", models.JSONField(default=list)),
                ("source", models.CharField(blank=True, db_default="", default="", max_length=100)),
                (
                    "created_at",
                    models.DateTimeField(db_default=Now(), editable=False),
                ),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "db_table": "api_tokens",
            },
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "scope", "key", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("scope", models.CharField(max_length=50)),
                ("key", models.CharField(max_length=255)),
                ("request_hash", models.CharField(default="", max_length=64)),
                ("answer_status", models.PositiveSmallIntegerField(null=True)),
                ("answer_body", models.TextField(default="")),
                ("answer_location", models.TextField(default="")),
                ("created_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "db_table": "idempotency_keys",
                "indexes": [models.Index(fields=["created_at"], name="idempotency_keys_age")],
            },
        ),
        # An order's timeline reads the admin's log by object, and the audit log reads it by time.
        migrations.RunSQL(
            "CREATE INDEX admin_log_by_object ON django_admin_log (object_id)",
            "DROP INDEX admin_log_by_object",
        ),
        migrations.RunSQL(
            "CREATE INDEX admin_log_by_time ON django_admin_log (action_time)",
            "DROP INDEX admin_log_by_time",
        ),
    ]
