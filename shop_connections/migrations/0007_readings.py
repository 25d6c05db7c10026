from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the column that 0004 added together with those of another table.

    A post locks both tables in the other order, so they were a deadlock, and the post was refused.
    """

    dependencies = [("connections", "0006_unknown_status")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.RunSQL(
            "ALTER TABLE connection_posts ADD COLUMN IF NOT EXISTS failed_readings smallint NULL"
            " CHECK (failed_readings >= 0)",
            "ALTER TABLE connection_posts DROP COLUMN failed_readings",
            state_operations=[
                migrations.AddField(
                    model_name="connectionpost",
                    name="failed_readings",
                    field=models.PositiveSmallIntegerField(editable=False, null=True),
                )
            ],
        ),
    ]
