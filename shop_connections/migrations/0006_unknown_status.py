from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("connections", "0005_left_out")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="connectionpost",
            name="unknown_status",
            field=models.TextField(db_default="", default="", editable=False),
        ),
    ]
