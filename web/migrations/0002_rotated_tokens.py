from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False  # for the index

    dependencies = [("web", "0001_initial_3")]

    operations = [
        migrations.AddField(
            "apitoken", "networks", models.JSONField(default=list, db_default=[], editable=False)
        ),
        migrations.AddField(
            "apitoken", "previous_digest", models.CharField(max_length=64, null=True, editable=False)
        ),
        migrations.AddField("apitoken", "previous_until", models.DateTimeField(null=True, editable=False)),
        AddIndexConcurrently(
            "apitoken",
            models.Index(
                fields=["previous_digest"],
                name="api_tokens_previous_digest",
                condition=Q(previous_digest__isnull=False),
            ),
        ),
    ]
