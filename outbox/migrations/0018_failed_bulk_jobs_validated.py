from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("outbox", "0017_failed_bulk_jobs"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        ValidateConstraint(model_name="bulkjob", name="bulk_jobs_state_known"),
    ]
