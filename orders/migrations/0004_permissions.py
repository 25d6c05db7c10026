from django.db import migrations


class Migration(migrations.Migration):
    """Add the permission to correct an order's address."""

    dependencies = [
        ("orders", "0003_admin_log_by_object"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="order",
            options={
                "permissions": [
                    ("correct_address", "Can correct an order's address"),
                    ("export_person", "Can export a person's data"),
                    ("erase_person", "Can erase a person's data"),
                ]
            },
        ),
    ]
