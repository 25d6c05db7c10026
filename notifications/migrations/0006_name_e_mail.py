from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0005_view_email_templates"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="emailnotification",
            options={
                "permissions": [
                    ("resend_emailnotification", "Can resend e-mails"),
                    ("discard_emailnotification", "Can give up e-mails"),
                    ("copy_emailnotification", "Can send copies of e-mails"),
                    ("force_provider", "Can force a provider open or closed"),
                ],
                "verbose_name": "e-mail",
            },
        ),
    ]
