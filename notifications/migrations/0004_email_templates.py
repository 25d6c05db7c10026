import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    dependencies = [("notifications", "0003_shop_copies")]

    operations = [
        migrations.CreateModel(
            name="EmailTemplate",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("source", models.CharField(max_length=100, default="", blank=True)),
                ("event_type", models.CharField(max_length=50)),
                ("locale", models.CharField(max_length=20, default="", blank=True)),
                ("subject", models.TextField()),
                ("body_text", models.TextField()),
                ("body_html", models.TextField()),
                ("published", models.PositiveIntegerField(null=True, editable=False)),
                ("edited_by", models.CharField(max_length=150, default="", blank=True)),
                ("edited_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "db_table": "email_templates",
                "default_permissions": ("view",),
                "permissions": [("edit_templates", "Can edit and publish templates of e-mails")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=["source", "event_type", "locale"], name="email_templates_key"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="EmailTemplateVersion",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "template",
                    models.ForeignKey(
                        "notifications.EmailTemplate",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="versions",
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("subject", models.TextField()),
                ("body_text", models.TextField()),
                ("body_html", models.TextField()),
                ("restored_from", models.PositiveIntegerField(null=True, editable=False)),
                ("published_by", models.CharField(max_length=150, default="", blank=True)),
                ("published_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("failed_at", models.DateTimeField(null=True, editable=False)),
                ("failure", models.CharField(max_length=300, default="", db_default="", editable=False)),
            ],
            options={
                "db_table": "email_template_versions",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=["template", "number"], name="email_template_versions_number"
                    ),
                    models.CheckConstraint(
                        condition=Q(number__gt=0), name="email_template_versions_count_from_one"
                    ),
                ],
            },
        ),
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "emailnotification", "template_version", models.UUIDField(null=True, editable=False)
        ),
    ]
