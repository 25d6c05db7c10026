from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """Release 0.1.0 keeps both rules: its relay publishes only what is not dead, and discards only what is."""

    dependencies = [
        ("outbox", "0005_indexes_of_the_relay"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        AddConstraintNotValid(
            model_name="outboxevent",
            constraint=models.CheckConstraint(
                condition=Q(published_at__isnull=True) | Q(dead_lettered_at__isnull=True),
                name="outbox_events_published_is_not_dead",
            ),
        ),
        AddConstraintNotValid(
            model_name="outboxevent",
            constraint=models.CheckConstraint(
                condition=Q(discarded_at__isnull=True) | Q(dead_lettered_at__isnull=False),
                name="outbox_events_discarded_was_dead",
            ),
        ),
    ]
