from django.db import migrations, models
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    dependencies = [("notifications", "0001_initial"), ("orders", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="MailProfile",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("source", models.CharField(max_length=100, unique=True, default="", blank=True)),
                ("from_email", models.CharField(max_length=320)),
                ("reply_to", models.CharField(max_length=320, default="", blank=True)),
                ("shop_name", models.CharField(max_length=200)),
                ("postal_address", models.CharField(max_length=500)),
                ("url", models.CharField(max_length=500, default="", blank=True)),
                ("default_locale", models.CharField(max_length=20, default="", blank=True)),
                ("colour", models.CharField(max_length=7, default="", blank=True)),
                ("logo_url", models.CharField(max_length=500, default="", blank=True)),
                ("copy_to", models.CharField(max_length=255, default="", blank=True)),
                ("account", models.JSONField(default=dict, blank=True)),
                ("created_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("updated_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={"db_table": "mail_profiles", "ordering": ["source"]},
        ),
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "emailnotification",
            "profile",
            models.CharField(max_length=100, default="", db_default="", blank=True),
        ),
        migrations.AddField(
            "emailnotification",
            "from_email",
            models.CharField(max_length=320, default="", db_default="", blank=True),
        ),
        migrations.AddField(
            "emailnotification",
            "reply_to",
            models.CharField(max_length=320, default="", db_default="", blank=True),
        ),
        migrations.AddField("emailnotification", "shop_copy_of", models.UUIDField(null=True, editable=False)),
        migrations.AddField(
            "emailnotification",
            "customer_email",
            models.CharField(max_length=255, default="", db_default="", blank=True, editable=False),
        ),
    ]
