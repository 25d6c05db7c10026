from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # CONCURRENTLY, because the table has writers

    dependencies = [
        ("outbox", "0020_token_source"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="inbounddeadletter",
            index=models.Index(fields=["event_id"], name="dead_events_event"),
        ),
    ]
