"""Keep what the recipient's server said of a bounce."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0003_rights")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "emailnotification",
            "bounce_text",
            models.CharField(max_length=300, default="", db_default="", blank=True, editable=False),
        ),
    ]
