from django.db import migrations


class Migration(migrations.Migration):
    #: PostgreSQL drops no index of a partitioned table concurrently. The lock lasts for a moment.
    squawk_exceptions = ("require-concurrent-index-deletion",)
    dependencies = [("notifications", "0010_addresses_by_beginning")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.RemoveIndex("emailnotification", "emailnotification_any_case"),
    ]
