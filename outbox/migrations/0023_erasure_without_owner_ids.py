"""Remove the ids of an erased person's orders, because orders are erased after all that they lead to."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("outbox", "0022_only_keys_of_requests")]

    operations = [migrations.RemoveField(model_name="erasure", name="owner_ids")]
