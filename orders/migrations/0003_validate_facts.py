from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("orders", "0002_facts_of_other_systems")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        ValidateConstraint(model_name="order", name="orders_total_in_range"),
        ValidateConstraint(model_name="order", name="orders_currency_form"),
    ]
