from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("outbox", "0006_states_of_events"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        ValidateConstraint(model_name="outboxevent", name="outbox_events_published_is_not_dead"),
        ValidateConstraint(model_name="outboxevent", name="outbox_events_discarded_was_dead"),
    ]
