from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("connections", "0001_initial")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="shopconnection",
            name="tried_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="shopconnection",
            name="unfinished",
            field=models.JSONField(editable=False, null=True),
        ),
    ]
