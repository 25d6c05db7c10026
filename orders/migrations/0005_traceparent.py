from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the trace that placed an order. The default lets release 0.1.0 continue to insert."""

    dependencies = [
        ("orders", "0004_permissions"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="order",
            name="traceparent",
            field=models.CharField(db_default="", default="", editable=False, max_length=55),
        ),
    ]
