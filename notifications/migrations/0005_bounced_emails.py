"""List the bounced e-mails by an index."""

from django.db import migrations, models

from retention.partitions.migrations import AddPartitionedIndex


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("notifications", "0004_bounce_text")]

    operations = [
        AddPartitionedIndex(
            "emailnotification",
            models.Index(
                fields=["-id"],
                name="emailnotification_bounced",
                condition=models.Q(bounced_at__isnull=False),
            ),
        ),
    ]
