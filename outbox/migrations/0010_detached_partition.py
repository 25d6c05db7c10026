from django.db import migrations


class Migration(migrations.Migration):
    """A new name in Python. The table keeps its name, and so does the permission."""

    dependencies = [
        ("outbox", "0009_index_of_replays"),
    ]

    operations = [
        migrations.RenameModel(old_name="RetiredPartition", new_name="DetachedPartition"),
        migrations.AlterModelOptions(
            name="detachedpartition",
            options={
                "verbose_name": "partition",
                "default_permissions": (),
                "permissions": [("view_retiredpartition", "Can view partition")],
            },
        ),
    ]
