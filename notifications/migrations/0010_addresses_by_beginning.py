from django.db import migrations, models
from django.db.models import F

from retention.partitions.migrations import AddPartitionedIndex
from runtime.database.beginnings import any_case


class Migration(migrations.Migration):
    """Find addresses by their beginning, too. The index also serves the statements of the release before."""

    atomic = False
    dependencies = [("notifications", "0009_age_of_emails")]

    operations = [
        AddPartitionedIndex(
            "emailnotification",
            models.Index(any_case("recipient_email"), F("id").desc(), name="emailnotification_address"),
        ),
    ]
