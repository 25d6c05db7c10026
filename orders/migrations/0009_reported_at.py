from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("orders", "0008_shipments")]

    operations = [
        # Every request writes to orders.
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField("order", "reported_at", models.DateTimeField(null=True, editable=False)),
    ]
