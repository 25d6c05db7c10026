from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runtime", "0003_processes")]

    operations = [
        migrations.RunSQL(
            "SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop
        ),  # every worker reads the table
        migrations.AddField("bulkjob", "refused_ids", models.JSONField(null=True)),
    ]
