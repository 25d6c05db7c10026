from django.db import migrations


class Migration(migrations.Migration):
    """Every query finds e-mails by address in any case, and the index for that is another one."""

    dependencies = [
        ("notifications", "0010_search_addresses_in_any_case"),
    ]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.RemoveIndex(model_name="emailnotification", name="emailnotification_recipient"),
    ]
