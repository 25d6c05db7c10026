from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """A job may export or erase one person's data. It forgets the address when it is done or stopped."""

    dependencies = [
        ("outbox", "0025_permissions_by_class"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="bulkjob",
            name="address",
            field=models.TextField(blank=True, default="", db_default=""),
        ),
        migrations.AddField(
            model_name="bulkjob",
            name="result",
            field=models.BinaryField(null=True),
        ),
        AddConstraintNotValid(
            model_name="bulkjob",
            constraint=models.CheckConstraint(
                condition=Q(address="") | Q(state__in=["running", "failed"]),
                name="bulk_jobs_ended_has_no_address",
            ),
        ),
    ]
