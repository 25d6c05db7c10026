from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("outbox", "0010_detached_partition"),
    ]

    operations = [
        migrations.CreateModel(
            name="TrafficSum",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "span", "start", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("span", models.PositiveSmallIntegerField()),
                ("start", models.DateTimeField()),
                ("counts", models.JSONField(default=dict)),
                ("spreads", models.JSONField(default=dict)),
                ("samples", models.JSONField(default=dict)),
            ],
            options={"db_table": "traffic_sums", "default_permissions": ()},
        ),
    ]
