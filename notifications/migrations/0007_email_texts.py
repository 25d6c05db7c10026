import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now

from runtime.database.ids import new_id

ROLES = {
    "view_emailtext": ("Can view email text", ["viewer", "support", "operator"]),
    "edit_texts": ("Can edit and publish the texts of e-mails", ["editor"]),
}


def grant(apps, schema_editor):
    """Give the permissions to groups that exist, in place of those of the templates."""
    content_types = apps.get_model("contenttypes", "ContentType").objects
    content_types.filter(
        app_label="notifications", model__in=["emailtemplate", "emailtemplateversion"]
    ).delete()
    for codename, (title, names) in ROLES.items():
        for group in apps.get_model("auth", "Group").objects.filter(name__in=names):
            kind, _ = content_types.get_or_create(app_label="notifications", model="emailtext")
            permission, _ = apps.get_model("auth", "Permission").objects.get_or_create(
                content_type=kind, codename=codename, defaults={"name": title}
            )
            group.permissions.add(permission)


class Migration(migrations.Migration):
    """Replace templates by sentences. Nothing was released, so no template is kept."""

    squawk_exceptions = ("ban-drop-table", "ban-drop-column")
    dependencies = [
        ("notifications", "0006_name_e_mail"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [
        migrations.DeleteModel("EmailTemplateVersion"),
        migrations.DeleteModel("EmailTemplate"),
        migrations.CreateModel(
            name="EmailText",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("source", models.CharField(max_length=100, default="", blank=True)),
                ("event_type", models.CharField(max_length=50)),
                ("locale", models.CharField(max_length=20)),
                ("sentences", models.JSONField(default=list)),
                ("published", models.PositiveIntegerField(null=True, editable=False)),
                ("edited_by", models.CharField(max_length=150, default="", blank=True)),
                ("edited_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "db_table": "email_texts",
                "default_permissions": ("view",),
                "permissions": [("edit_texts", "Can edit and publish the texts of e-mails")],
                "constraints": [
                    models.UniqueConstraint(fields=["source", "event_type", "locale"], name="email_texts_key")
                ],
            },
        ),
        migrations.CreateModel(
            name="EmailTextVersion",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "text",
                    models.ForeignKey(
                        "notifications.EmailText",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="versions",
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("sentences", models.JSONField(default=list)),
                ("restored_from", models.PositiveIntegerField(null=True, editable=False)),
                ("published_by", models.CharField(max_length=150, default="", blank=True)),
                ("published_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "db_table": "email_text_versions",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["text", "number"], name="email_text_versions_number"),
                    models.CheckConstraint(
                        condition=Q(number__gt=0), name="email_text_versions_count_from_one"
                    ),
                ],
            },
        ),
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.RemoveField("emailnotification", "template_version"),
        migrations.AddField(
            "emailnotification",
            "text_versions",
            models.JSONField(null=True, editable=False),
        ),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
