"""Keep the shop of a suppression when the e-mail that caused it is archived."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0005_bounced_emails")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "suppression", "source", models.CharField(max_length=100, null=True, editable=False)
        ),
    ]
