from django.db import migrations, models
from django.db.models.functions import Upper

from retention.partitions.migrations import AddPartitionedIndex

GRANTED = {"viewer": ["view"], "support": ["view"], "operator": ["view", "add", "change", "delete"]}


def grant(apps, schema_editor):
    """Let groups that exist see and edit profiles. `migrate` gives new groups their permissions at its end."""
    groups = apps.get_model("auth", "Group").objects.filter(name__in=GRANTED)
    if not groups:
        return
    content_types = apps.get_model("contenttypes", "ContentType").objects
    kind, _ = content_types.get_or_create(app_label="notifications", model="mailprofile")
    for group in groups:
        for verb in GRANTED[group.name]:
            permission, _ = apps.get_model("auth", "Permission").objects.get_or_create(
                content_type=kind,
                codename=f"{verb}_mailprofile",
                defaults={"name": f"Can {verb} mail profile"},
            )
            group.permissions.add(permission)


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("notifications", "0002_mail_profiles"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [
        AddPartitionedIndex(
            "emailnotification",
            models.Index(
                Upper("customer_email"),
                name="emailnotification_customer",
                condition=~models.Q(customer_email=""),
            ),
        ),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
