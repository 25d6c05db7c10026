from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("web", "0001_initial_3")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "apitoken", "networks", models.JSONField(default=list, db_default=[], editable=False)
        ),
        migrations.AddField(
            "apitoken", "previous_digest", models.CharField(max_length=64, null=True, editable=False)
        ),
        migrations.AddField("apitoken", "previous_until", models.DateTimeField(null=True, editable=False)),
    ]
