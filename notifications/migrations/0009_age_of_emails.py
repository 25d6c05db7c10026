from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0008_order_of_emails")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "emailnotification", "readdressed_at", models.DateTimeField(null=True, editable=False)
        ),
    ]
