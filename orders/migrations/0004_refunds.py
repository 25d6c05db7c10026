import django.db.models.deletion
from django.db import migrations, models

from runtime.database.ids import new_id


class Migration(migrations.Migration):
    dependencies = [("orders", "0003_validate_facts")]

    operations = [
        migrations.CreateModel(
            name="OrderRefund",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                (
                    "order",
                    models.ForeignKey(
                        to="orders.order",
                        on_delete=django.db.models.deletion.CASCADE,
                        db_constraint=False,
                        db_index=False,
                    ),
                ),
                ("refund_id", models.CharField(max_length=100, null=True)),
                ("amount", models.BigIntegerField()),
                ("way", models.CharField(max_length=10)),
                ("at", models.DateTimeField()),
            ],
            options={
                "db_table": "refunds",
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=["order", "refund_id"], name="refunds_once")],
            },
        ),
    ]
