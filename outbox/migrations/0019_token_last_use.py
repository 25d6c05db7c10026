from django.db import migrations, models


class Migration(migrations.Migration):
    """When a token was last used. Each request reads the table, so wait for its lock only for a short time."""

    dependencies = [
        ("outbox", "0018_failed_bulk_jobs_validated"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="apitoken",
            name="last_used_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
    ]
