from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("web", "0003_index_rotated_tokens")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "apitoken", "previous_prefix", models.CharField(max_length=12, null=True, editable=False)
        ),
    ]
