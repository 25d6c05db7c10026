from django.db import migrations, models
from django.db.models.functions import Upper

from retention.partitions.migrations import AddPartitionedIndex


class Migration(migrations.Migration):
    """Lists, the search and a person's data find e-mails by address in any case."""

    atomic = False  # build on each partition while clients write to it

    dependencies = [
        ("notifications", "0009_indexes_of_the_search"),
    ]

    operations = [
        AddPartitionedIndex(
            model_name="emailnotification",
            index=models.Index(
                Upper("recipient_email"),
                models.OrderBy(models.F("id"), descending=True),
                name="emailnotification_any_case",
            ),
        ),
    ]
