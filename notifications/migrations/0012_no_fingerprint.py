from django.db import migrations


class Migration(migrations.Migration):
    """The page of causes groups errors when it is read."""

    dependencies = [
        ("notifications", "0011_one_index_of_recipients"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.RemoveIndex(model_name="emailnotification", name="emailnotification_causes"),
        migrations.RemoveField(model_name="emailnotification", name="error_fingerprint"),
    ]
