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


def take_unused(apps: Any, schema_editor: Any) -> None:
    """Take from the group support what it cannot use, unless a shop has changed the group."""
    using = schema_editor.connection.alias
    groups = apps.get_model("auth", "Group").objects.using(using)
    permissions = apps.get_model("auth", "Permission").objects.using(using)
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
        ("connections", "0002_what_the_page_asks"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [migrations.RunPython(take_unused, migrations.RunPython.noop)]
