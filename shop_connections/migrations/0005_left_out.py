from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("connections", "0004_installations_and_readings")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="shopconnection",
            name="left_out",
            field=models.PositiveIntegerField(db_default=0, default=0, editable=False),
        ),
    ]
