from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("notifications", "0007_email_texts")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "emailnotification", "order_version", models.IntegerField(null=True, editable=False)
        ),
        migrations.AddField(
            "emailnotification", "is_awaited", models.BooleanField(db_default=False, editable=False)
        ),
    ]
