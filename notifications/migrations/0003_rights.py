from typing import Any

from django.db import migrations

#: By model: the permission and its name.
NEW = {
    "emailnotification": (
        "resend_hopeless",
        "Can resend all e-mails of a cause that a resend does not remove",
    ),
    "suppression": ("lift_complaint", "Can lift suppressions after a complaint"),
}


def grant(apps: Any, schema_editor: Any) -> None:
    """Give the group operator two rights. A new database has no groups yet."""
    using = schema_editor.connection.alias
    groups = apps.get_model("auth", "Group").objects.using(using)
    permissions = apps.get_model("auth", "Permission").objects.using(using)
    kinds = apps.get_model("contenttypes", "ContentType").objects.using(using)
    for operator in groups.filter(name="operator", permissions__codename="force_provider"):
        for model, (codename, name) in NEW.items():
            kind, _ = kinds.get_or_create(app_label="notifications", model=model)
            permission, _ = permissions.get_or_create(
                content_type=kind, codename=codename, defaults={"name": name}
            )
            operator.permissions.add(permission)


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("notifications", "0002_emails_of_a_shop"),
    ]

    operations = [
        migrations.AlterModelOptions(
            "emailnotification",
            {
                "verbose_name": "e-mail",
                "permissions": [
                    ("resend_emailnotification", "Can resend e-mails"),
                    (
                        "resend_hopeless",
                        "Can resend all e-mails of a cause that a resend does not remove",
                    ),
                    ("discard_emailnotification", "Can give up e-mails"),
                    ("copy_emailnotification", "Can send copies of e-mails"),
                    ("force_provider", "Can force a provider open or closed"),
                ],
            },
        ),
        migrations.AlterModelOptions(
            "suppression",
            {
                "default_permissions": ("view", "add"),
                "permissions": [
                    ("lift_suppression", "Can lift suppressions"),
                    ("lift_complaint", "Can lift suppressions after a complaint"),
                ],
            },
        ),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
