from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("outbox", "0012_bulk_jobs"),
    ]

    operations = [
        migrations.CreateModel(
            name="RoleGrant",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "role", "permission", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("role", models.CharField(max_length=50)),
                ("permission", models.CharField(max_length=150)),
                ("granted_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"db_table": "role_grants", "default_permissions": ()},
        ),
    ]
