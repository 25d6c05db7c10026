from django.db import migrations, models
from django.db.models.functions import Now

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="DetachedPartition",
            fields=[
                ("name", models.CharField(primary_key=True, serialize=False, max_length=63)),
                ("table", models.CharField(max_length=63)),
                ("since", models.DateTimeField()),
                ("until", models.DateTimeField()),
                ("manifest", models.JSONField(null=True)),
                ("detached_at", models.DateTimeField(db_default=Now())),
                ("archived_at", models.DateTimeField(null=True)),
                ("dropped_at", models.DateTimeField(null=True)),
                ("deleted_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "detached_partitions",
                "verbose_name": "partition",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Erasure",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("address_hash", models.CharField(max_length=64, unique=True)),
                ("cold_files", models.JSONField(default=list)),
                ("counts", models.JSONField(default=dict)),
                ("requested_at", models.DateTimeField(db_default=Now())),
                ("finished_at", models.DateTimeField(null=True)),
            ],
            options={"db_table": "erasures", "default_permissions": ("view",)},
        ),
    ]
