"""List a shop's suppressions by an index. Those of an earlier process have no source, and a bound user does not see them."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import F, Q


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("notifications", "0006_source_of_suppressions")]

    operations = [
        AddIndexConcurrently(
            "suppression",
            models.Index(
                F("source"), F("id").desc(), name="suppressions_source", condition=Q(source__isnull=False)
            ),
        ),
    ]
