from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("runtime", "0002_audit_rows"),
    ]

    operations = [
        migrations.CreateModel(
            name="UserBinding",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        settings.AUTH_USER_MODEL,
                        primary_key=True,
                        serialize=False,
                        on_delete=models.CASCADE,
                        related_name="+",
                        db_constraint=False,
                    ),
                ),
                ("sources", models.JSONField(default=list, db_default=[])),
            ],
            options={"db_table": "user_bindings", "default_permissions": ()},
        ),
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField("bulkjob", "sources", models.JSONField(null=True)),
    ]
