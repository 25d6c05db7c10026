from django.db import migrations


class Migration(migrations.Migration):
    """The order's version makes its e-mails unique. Each request reads the table, so wait for its lock only briefly."""

    dependencies = [
        ("outbox", "0021_index_of_dead_letters_by_event"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.RemoveField(model_name="idempotencykey", name="notification_id"),
    ]
