from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("outbox", "0026_jobs_on_a_person"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        ValidateConstraint(model_name="bulkjob", name="bulk_jobs_ended_has_no_address"),
    ]
