from django.conf import settings
from django.db import migrations

#: Until now each member of the staff saw all shops. A superuser decides who shall see fewer.
BIND_TO_ALL_SHOPS = """
    INSERT INTO user_bindings (user_id, sources)
    SELECT id, '["*"]' FROM auth_user WHERE is_staff AND NOT is_superuser
    ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("runtime", "0003_user_bindings"),
    ]

    operations = [migrations.RunSQL(BIND_TO_ALL_SHOPS, migrations.RunSQL.noop)]
