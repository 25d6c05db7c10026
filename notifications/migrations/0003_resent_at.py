from django.db import migrations, models


class Migration(migrations.Migration):
    """When a person last resent the e-mail. Nullable, because release 0.1.0 still inserts rows without it."""

    dependencies = [
        ("notifications", "0002_suppressions_and_complaints"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="emailnotification",
            name="resent_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
    ]
