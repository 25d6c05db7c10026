from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("web", "0002_rotated_tokens")]

    operations = [
        AddIndexConcurrently(
            "apitoken",
            models.Index(
                fields=["previous_digest"],
                name="api_tokens_previous_digest",
                condition=Q(previous_digest__isnull=False),
            ),
        ),
    ]
