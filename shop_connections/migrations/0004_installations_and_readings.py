from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("connections", "0003_group_support")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="shopconnection",
            name="installation",
            field=models.JSONField(db_default={}, default=dict, editable=False),
        ),
        migrations.AddField(
            model_name="shopconnection",
            name="refresh_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AlterField(
            model_name="shopconnection",
            name="platform",
            field=models.CharField(
                choices=[("woocommerce", "WooCommerce"), ("saleor", "Saleor")],
                default="woocommerce",
                max_length=20,
            ),
        ),
    ]
