from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the system that owns an order. The default lets release 0.1.0 continue to insert."""

    dependencies = [
        ("orders", "0006_index_of_the_search"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '5s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="order",
            name="source",
            field=models.CharField(blank=True, db_default="", default="", editable=False, max_length=100),
        ),
    ]
