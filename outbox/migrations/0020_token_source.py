from django.db import migrations, models


class Migration(migrations.Migration):
    """The source of a token. Each request reads the table, so wait for its lock only for a short time."""

    dependencies = [
        ("outbox", "0019_token_last_use"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="apitoken",
            name="source",
            field=models.CharField(blank=True, db_default="", default="", max_length=100),
        ),
    ]
