from django.db import migrations, models


class Migration(migrations.Migration):
    """The e-mail that a row is a copy of. Nullable, because release 0.1.0 still inserts rows without it."""

    dependencies = [
        ("notifications", "0004_indexes_of_ended_lists"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="emailnotification",
            name="resend_of",
            field=models.UUIDField(editable=False, null=True),
        ),
        migrations.AlterModelOptions(
            name="emailnotification",
            options={
                "permissions": [
                    ("resend_emailnotification", "Can resend e-mails"),
                    ("discard_emailnotification", "Can give up e-mails"),
                    ("copy_emailnotification", "Can send copies of e-mails"),
                    ("force_provider", "Can force a provider open or closed"),
                ]
            },
        ),
    ]
