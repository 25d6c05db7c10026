from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """Let a bulk job fail. A process that does not know the state takes running jobs alone, and ignores it."""

    dependencies = [
        ("outbox", "0016_pauses"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="bulkjob",
            name="tries",
            field=models.SmallIntegerField(db_default=0),
        ),
        migrations.AlterField(
            model_name="bulkjob",
            name="state",
            field=models.CharField(
                choices=[
                    ("running", "Running"),
                    ("done", "Done"),
                    ("stopped", "Stopped"),
                    ("failed", "Failed"),
                ],
                default="running",
                max_length=10,
            ),
        ),
        migrations.RemoveConstraint(model_name="bulkjob", name="bulk_jobs_state_known"),
        AddConstraintNotValid(
            model_name="bulkjob",
            constraint=models.CheckConstraint(
                condition=Q(state__in=["running", "done", "stopped", "failed"]), name="bulk_jobs_state_known"
            ),
        ),
    ]
