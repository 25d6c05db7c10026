from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("connections", "0001_initial")]

    operations = [
        migrations.RunSQL(
            "SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop
        ),  # each post of a shop reads the table
        migrations.AddField("shopconnection", "refused_at", models.DateTimeField(editable=False, null=True)),
    ]
