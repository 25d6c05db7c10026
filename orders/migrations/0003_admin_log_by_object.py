from django.db import migrations


class Migration(migrations.Migration):
    """Index the admin's log by object, because an order's timeline reads it and Django has no such index."""

    atomic = False  # CONCURRENTLY

    dependencies = [
        ("orders", "0002_search_addresses_in_any_case"),
        ("admin", "0003_logentry_add_action_flag_choices"),
    ]

    operations = [
        migrations.RunSQL("SET lock_timeout = '5s'", migrations.RunSQL.noop),
        # An interrupted CREATE INDEX CONCURRENTLY leaves an invalid index with this name.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS admin_log_by_object", migrations.RunSQL.noop),
        migrations.RunSQL(
            "CREATE INDEX CONCURRENTLY admin_log_by_object ON django_admin_log (object_id)",
            "DROP INDEX CONCURRENTLY IF EXISTS admin_log_by_object",
        ),
        migrations.RunSQL("RESET lock_timeout", migrations.RunSQL.noop),
    ]
