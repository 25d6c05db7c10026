from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("web", "0002_webhook_signatures")]

    operations = [migrations.AlterModelOptions("apitoken", {"verbose_name": "API token"})]
