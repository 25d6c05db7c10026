from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("connections", "0001_initial_5")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="shopconnection",
            name="comparison",
            field=models.JSONField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="shopconnection",
            name="left_on",
            field=models.JSONField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="shopconnection",
            name="unmailed",
            field=models.JSONField(editable=False, null=True),
        ),
    ]
