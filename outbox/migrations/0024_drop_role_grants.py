from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("outbox", "0023_erasure_without_owner_ids"),
    ]

    operations = [
        migrations.DeleteModel(name="RoleGrant"),
    ]
