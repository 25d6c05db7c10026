from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runtime", "0004_bulkjob_refused_ids")]

    operations = [
        migrations.RunSQL(
            "SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop
        ),  # every process writes to the table
        migrations.AddField("heartbeat", "clock_ahead", models.FloatField(null=True)),
    ]
