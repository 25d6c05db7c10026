from django.db import migrations


class Migration(migrations.Migration):
    """An index for an order's timeline: the admin's log of an object. Django has none."""

    atomic = False  # CONCURRENTLY

    dependencies = [
        ("orders", "0002_search_addresses_in_any_case"),
        ("admin", "0003_logentry_add_action_flag_choices"),
    ]

    operations = [
        migrations.RunSQL("SET lock_timeout = '5s'", migrations.RunSQL.noop),
        # A CREATE INDEX CONCURRENTLY that was cut short leaves an invalid index of its name.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS admin_log_by_object", migrations.RunSQL.noop),
        migrations.RunSQL(
            "CREATE INDEX CONCURRENTLY admin_log_by_object ON django_admin_log (object_id)",
            "DROP INDEX CONCURRENTLY IF EXISTS admin_log_by_object",
        ),
        migrations.RunSQL("RESET lock_timeout", migrations.RunSQL.noop),
    ]
