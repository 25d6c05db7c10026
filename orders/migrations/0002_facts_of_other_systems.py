from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    """No row breaks the new conditions, which allow more. The next migration checks that without a lock."""

    dependencies = [("orders", "0001_initial")]
    #: A constraint of the same name that allows more takes the place of each in the same transaction.
    squawk_exceptions = ("ban-drop-constraint",)

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="order",
            name="warnings",
            field=models.JSONField(default=list, db_default=[], blank=True, editable=False),
        ),
        migrations.RemoveConstraint(model_name="order", name="orders_total_in_range"),
        migrations.RemoveConstraint(model_name="order", name="orders_currency_form"),
        AddConstraintNotValid(
            model_name="order",
            constraint=models.CheckConstraint(
                condition=Q(total_amount__gte=1, total_amount__lte=10**12) | ~Q(source=""),
                name="orders_total_in_range",
            ),
        ),
        AddConstraintNotValid(
            model_name="order",
            constraint=models.CheckConstraint(
                condition=Q(currency__regex=r"^[A-Z]{3}$") | ~Q(source=""), name="orders_currency_form"
            ),
        ),
    ]
