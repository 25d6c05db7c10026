from django.db import migrations, models


def grant(apps, schema_editor):
    """Let operators that exist forget a process. `migrate` makes the group if it is missing."""
    groups = apps.get_model("auth", "Group").objects.filter(name="operator")
    if not groups:
        return
    content_types = apps.get_model("contenttypes", "ContentType").objects
    kind, _ = content_types.get_or_create(app_label="runtime", model="heartbeat")
    permission, _ = apps.get_model("auth", "Permission").objects.get_or_create(
        content_type=kind, codename="delete_heartbeat", defaults={"name": "Can delete heartbeat"}
    )
    for group in groups:
        group.permissions.add(permission)


class Migration(migrations.Migration):
    dependencies = [
        ("runtime", "0002_bulkjob_steps"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
    ]

    operations = [
        migrations.RunSQL(
            "SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop
        ),  # every process writes to the table
        migrations.AddField("heartbeat", "kind", models.CharField(max_length=20, null=True)),
        migrations.AddField("heartbeat", "host", models.CharField(max_length=100, null=True)),
        migrations.AddField("heartbeat", "process", models.IntegerField(null=True)),
        migrations.AddField("heartbeat", "release", models.CharField(max_length=50, null=True)),
        migrations.RunPython(grant, migrations.RunPython.noop),
    ]
