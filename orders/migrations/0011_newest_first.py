from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Upper


class Migration(migrations.Migration):
    atomic = False  # CONCURRENTLY, because the table has writers

    dependencies = [
        ("orders", "0010_indexes_of_stuck_orders"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="order", index=models.Index(fields=["created_at", "id"], name="orders_newest")
        ),
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(fields=["user_id", "created_at", "id"], name="orders_user_newest"),
        ),
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(fields=["status", "created_at", "id"], name="orders_status_newest"),
        ),
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                fields=["reference", "created_at", "id"],
                name="orders_reference_newest",
                condition=models.Q(("reference", ""), _negated=True),
            ),
        ),
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                fields=["source", "created_at", "id"],
                name="orders_source_newest",
                condition=models.Q(("source", ""), _negated=True),
            ),
        ),
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                fields=["source", "status", "created_at", "id"],
                name="orders_source_status_newest",
                condition=models.Q(("source", ""), _negated=True),
            ),
        ),
        AddIndexConcurrently(
            model_name="order",
            index=models.Index(
                Upper("email"),
                models.F("created_at"),
                models.F("id"),
                name="orders_email_newest",
            ),
        ),
        *(
            RemoveIndexConcurrently(model_name="order", name=name)
            for name in (
                "orders_user",
                "orders_status",
                "orders_reference",
                "orders_source",
                "orders_email_any_case",
                "orders_created",
            )
        ),
    ]
