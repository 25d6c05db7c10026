from django.db import migrations


class Migration(migrations.Migration):
    """An index for the audit log's filter by time. Django has none."""

    atomic = False  # CONCURRENTLY

    dependencies = [
        ("outbox", "0014_index_of_open_inbound_dead_letters"),
        ("admin", "0003_logentry_add_action_flag_choices"),
    ]

    operations = [
        migrations.RunSQL("SET lock_timeout = '5s'", migrations.RunSQL.noop),
        # A CREATE INDEX CONCURRENTLY that was cut short leaves an invalid index of its name.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS admin_log_by_time", migrations.RunSQL.noop),
        migrations.RunSQL(
            "CREATE INDEX CONCURRENTLY admin_log_by_time ON django_admin_log (action_time)",
            "DROP INDEX CONCURRENTLY IF EXISTS admin_log_by_time",
        ),
        migrations.RunSQL("RESET lock_timeout", migrations.RunSQL.noop),
    ]
