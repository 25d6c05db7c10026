from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Upper


class Migration(migrations.Migration):
    atomic = False  # CONCURRENTLY, because the table has writers

    dependencies = [
        ("orders", "0001_initial"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                Upper("email"), models.OrderBy(models.F("id"), descending=True), name="orders_email_any_case"
            ),
        ),
        RemoveIndexConcurrently(model_name="order", name="orders_email"),
        migrations.AlterModelOptions(
            name="order",
            options={
                "permissions": [
                    ("export_person", "Can export a person's data"),
                    ("erase_person", "Can erase a person's data"),
                ]
            },
        ),
    ]
