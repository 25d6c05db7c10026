from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runtime", "0001_initial")]

    operations = [
        migrations.RunSQL(
            "SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop
        ),  # workers write to the table
        migrations.AddField(
            model_name="bulkjob",
            name="steps",
            field=models.JSONField(null=True),
        ),
    ]
