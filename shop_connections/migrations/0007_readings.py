from django.db import migrations, models


class Migration(migrations.Migration):
    """Add a column by a migration of its own.

    With those of `shop_connections` in 0004 it was a deadlock: a post locks the two tables in the other order.
    """

    dependencies = [("connections", "0006_unknown_status")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="connectionpost",
            name="failed_readings",
            field=models.PositiveSmallIntegerField(editable=False, null=True),
        ),
    ]
