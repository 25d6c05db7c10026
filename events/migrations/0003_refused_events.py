from django.db import migrations, models
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    dependencies = [("events", "0002_is_exact")]

    operations = [
        migrations.CreateModel(
            name="RefusedEvent",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("sender", models.CharField(max_length=100)),
                ("topic", models.CharField(max_length=100)),
                ("reason", models.CharField(max_length=300)),
                ("count", models.PositiveBigIntegerField()),
                ("first_at", models.DateTimeField(db_default=Now(), editable=False)),
                ("last_at", models.DateTimeField(db_default=Now(), editable=False)),
            ],
            options={
                "db_table": "refused_events",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["sender", "topic", "reason"], name="refused_events_once")
                ],
            },
        ),
    ]
