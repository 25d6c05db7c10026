from django.db import migrations, models


class Migration(migrations.Migration):
    """The table and the code names of the permissions stay those of release 0.1.0."""

    dependencies = [
        ("outbox", "0007_states_of_events_validated"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.RenameModel("DeadEvent", "InboundDeadLetter"),
        migrations.AlterModelOptions(
            name="inbounddeadletter",
            options={
                "default_permissions": (),
                "permissions": [
                    ("view_deadevent", "Can view dead event"),
                    ("resolve_deadevent", "Can replay and discard events"),
                ],
            },
        ),
        migrations.AddField(
            model_name="inbounddeadletter",
            name="replay_requested_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
    ]
