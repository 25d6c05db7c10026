from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("orders", "0004_refunds")]

    operations = [
        # Every request writes to orders.
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            "order", "unexpected_payment_at", models.DateTimeField(null=True, editable=False)
        ),
        migrations.AddField(
            "order", "unexpected_payment_event_id", models.UUIDField(null=True, editable=False)
        ),
        migrations.AddField(
            "order", "unexpected_payment_amount", models.BigIntegerField(null=True, editable=False)
        ),
        migrations.AddField("orderrefund", "is_unexpected_payment", models.BooleanField(db_default=False)),
    ]
