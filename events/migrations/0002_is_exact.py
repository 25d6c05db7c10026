from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("events", "0001_initial")]

    operations = [
        # Consumers write to the table.
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "inbounddeadletter",
            "is_exact",
            models.BooleanField(
                db_default=True,
                help_text="Whether the envelope is exactly what came. Otherwise it was not UTF-8, had a NUL"
                " character in it or was too long, and cannot be replayed: have its sender correct it and send it"
                " again.",
            ),
        ),
    ]
