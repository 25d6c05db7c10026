from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("retention", "0002_only_the_owner_writes_records")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(model_name="erasure", name="repeated_at", field=models.DateTimeField(null=True)),
    ]
