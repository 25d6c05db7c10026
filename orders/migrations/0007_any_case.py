from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models import F, Q

from runtime.database.beginnings import any_case


class Migration(migrations.Migration):
    """Find references in any case, and both references and addresses by their beginning.

    `orders_email` also serves the statements of the release before.
    """

    atomic = False
    dependencies = [("orders", "0006_index_unexpected_payments")]

    operations = [
        AddIndexConcurrently(
            "order",
            models.Index(
                any_case("reference"),
                F("created_at").desc(),
                F("id").desc(),
                name="orders_reference",
                condition=~Q(reference=""),
            ),
        ),
        AddIndexConcurrently(
            "order",
            models.Index(any_case("email"), F("created_at").desc(), F("id").desc(), name="orders_email"),
        ),
        RemoveIndexConcurrently("order", "orders_email_newest"),
    ]
