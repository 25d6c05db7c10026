from typing import Any

from django.db import migrations

#: What the group support had before, and does not use: it can change nothing there.
UNUSED = {
    "events": ("view_domainevent", "view_inbounddeadletter"),
    "retention": ("view_detachedpartition",),
    "runtime": ("view_heartbeat", "view_bulkjob", "view_pause"),
}
#: What the former release gave to the group support.
FORMER = {
    "admin": ("view_logentry",),
    "connections": ("view_shopconnection", "view_connectionpost"),
    "notifications": (
        *("view_emailnotification", "view_emailtext", "view_suppression", "view_mailprofile"),
        *("resend_emailnotification", "discard_emailnotification", "copy_emailnotification"),
        *("add_suppression", "lift_suppression"),
    ),
    "orders": ("view_order", "correct_address", "export_person"),
    **UNUSED,
}
NEW = {
    "emailnotification": (
        "resend_hopeless",
        "Can resend all e-mails of a cause that a resend does not remove",
    ),
    "suppression": ("lift_complaint", "Can lift suppressions after a complaint"),
}


def change_groups(apps: Any, schema_editor: Any) -> None:
    """Give the group operator two rights, and take from support what it cannot use.

    A group that a shop has made or changed keeps what it has. A new database has no groups yet.
    """
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
    former = {f"{app}.{code}" for app, codes in FORMER.items() for code in codes}
    for support in groups.filter(name="support"):
        rows = support.permissions.values_list("content_type__app_label", "codename")
        if {f"{app}.{code}" for app, code in rows} == former:
            for app, codes in UNUSED.items():
                support.permissions.remove(
                    *permissions.filter(content_type__app_label=app, codename__in=codes)
                )


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
        migrations.RunPython(change_groups, migrations.RunPython.noop),
    ]
