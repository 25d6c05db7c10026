from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = [("admin", "0003_logentry_add_action_flag_choices")]

    operations = [
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                ("pk", models.CompositePrimaryKey("scope", "key", serialize=False)),
                ("scope", models.CharField(max_length=50)),
                ("key", models.CharField(max_length=255)),
                ("request_hash", models.CharField(max_length=64, default="")),
                ("answer_status", models.PositiveSmallIntegerField(null=True)),
                ("answer_body", models.TextField(default="")),
                ("answer_location", models.TextField(default="")),
                ("order_id", models.UUIDField(null=True)),
                ("address_hashes", models.JSONField(default=list, db_default=[])),
                ("created_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "db_table": "idempotency_keys",
                "indexes": [
                    models.Index(fields=["created_at"], name="idempotency_keys_age"),
                    models.Index(
                        fields=["created_at"],
                        name="idempotency_keys_webhook_age",
                        condition=Q(scope__startswith="webhook:"),
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("name", models.CharField(max_length=100)),
                ("prefix", models.CharField(max_length=12, editable=False)),
                ("digest", models.CharField(max_length=64, unique=True, editable=False)),
                ("scopes", models.JSONField(default=list)),
                ("source", models.CharField(max_length=100, default="", db_default="", blank=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("expires_at", models.DateTimeField(null=True, blank=True)),
                ("revoked_at", models.DateTimeField(null=True, blank=True)),
                ("last_used_at", models.DateTimeField(null=True, editable=False)),
            ],
            options={"db_table": "api_tokens", "verbose_name": "API token"},
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
