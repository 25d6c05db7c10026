from django.db import migrations, models


class Migration(migrations.Migration):
    """The cause of the last error. Nullable, because release 0.1.0 still inserts rows without it."""

    dependencies = [
        ("notifications", "0005_resend_of"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="emailnotification",
            name="error_fingerprint",
            field=models.CharField(editable=False, max_length=16, null=True),
        ),
    ]
