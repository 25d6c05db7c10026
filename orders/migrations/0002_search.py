"""Index what the admin's search finds: words of names, domains, and parts of references and tracking numbers."""

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations

from runtime.database.parts import AddPartsIndex, CreateTrigrams, parts_index, words_of


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("orders", "0001_initial_4")]

    operations = [
        CreateTrigrams(),
        AddIndexConcurrently("order", GinIndex(words_of("name", "email"), name="orders_words")),
        AddPartsIndex("order", parts_index("reference", name="orders_reference_parts")),
        AddPartsIndex("shipment", parts_index("tracking_number", name="shipments_tracking_parts")),
    ]
