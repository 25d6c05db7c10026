from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("orders", "0010_unshipped")]

    operations = [
        # Every request writes to orders.
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField("order", "untold_since", models.DateTimeField(null=True, editable=False)),
        migrations.AddField("shipment", "untold_since", models.DateTimeField(null=True)),
    ]
