from django.db import migrations


def grant(apps, schema_editor):
    """Let groups that exist see templates. `migrate` makes the group editor at its end."""
    groups = apps.get_model("auth", "Group").objects.filter(name__in=["viewer", "support", "operator"])
    if not groups:
        return
    content_types = apps.get_model("contenttypes", "ContentType").objects
    kind, _ = content_types.get_or_create(app_label="notifications", model="emailtemplate")
    permission, _ = apps.get_model("auth", "Permission").objects.get_or_create(
        content_type=kind, codename="view_emailtemplate", defaults={"name": "Can view email template"}
    )
    for group in groups:
        group.permissions.add(permission)


class Migration(migrations.Migration):
    dependencies = [
        ("notifications", "0004_email_templates"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [migrations.RunPython(grant, migrations.RunPython.noop)]
