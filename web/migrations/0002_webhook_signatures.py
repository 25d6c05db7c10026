from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("web", "0001_initial")]

    operations = [
        AddIndexConcurrently(
            model_name="idempotencykey",
            index=models.Index(
                fields=["created_at"],
                name="idempotency_keys_webhook_age",
                condition=Q(scope__startswith="webhook:"),
            ),
        ),
    ]
