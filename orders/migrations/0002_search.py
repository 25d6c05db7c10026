"""Index the parts of tracking numbers, for the admin's search."""

from django.db import migrations

from runtime.database.parts import AddPartsIndex, CreateTrigrams, parts_index


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("orders", "0001_initial_4")]

    operations = [
        CreateTrigrams(),
        AddPartsIndex("shipment", parts_index("tracking_number", name="shipments_tracking_parts")),
    ]
