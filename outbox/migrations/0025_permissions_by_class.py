from django.db import migrations


class Migration(migrations.Migration):
    """Name permissions as Django derives them from the classes."""

    dependencies = [
        ("outbox", "0024_drop_role_grants"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="detachedpartition",
            options={"default_permissions": ("view",), "verbose_name": "partition"},
        ),
        migrations.AlterModelOptions(
            name="inbounddeadletter",
            options={
                "default_permissions": ("view",),
                "permissions": [("resolve_inbounddeadletter", "Can replay and discard events")],
            },
        ),
    ]
