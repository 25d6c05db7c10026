from django.db import migrations, models
from django.db.models.functions import Now

from runtime.database.ids import new_id

#: docker/app_role.sql revokes these, too. But if it runs before the first migrate, as in Compose, its default
#: privileges give the app's role every table that is made later.
REVOKE = """
    DO $$
    DECLARE privilege record;
    BEGIN
        FOR privilege IN
            SELECT DISTINCT pg_class.oid::regclass AS relation, acl.grantee::regrole AS grantee
            FROM pg_class, aclexplode(relacl) AS acl
            WHERE pg_class.oid IN ('detached_partitions'::regclass, 'django_migrations'::regclass)
                AND acl.grantee NOT IN (0, relowner)
        LOOP
            EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %s FROM %s', privilege.relation, privilege.grantee);
        END LOOP;
    END
    $$
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="DetachedPartition",
            fields=[
                ("name", models.CharField(primary_key=True, serialize=False, max_length=63)),
                ("table", models.CharField(max_length=63)),
                ("since", models.DateTimeField()),
                ("until", models.DateTimeField()),
                ("manifest", models.JSONField(null=True)),
                ("detached_at", models.DateTimeField(db_default=Now())),
                ("archived_at", models.DateTimeField(null=True)),
                ("dropped_at", models.DateTimeField(null=True)),
                ("deleted_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "detached_partitions",
                "verbose_name": "partition",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Erasure",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("address_hash", models.CharField(max_length=64, unique=True)),
                ("cold_files", models.JSONField(default=list)),
                ("counts", models.JSONField(default=dict)),
                ("requested_at", models.DateTimeField(db_default=Now())),
                ("finished_at", models.DateTimeField(null=True)),
                ("repeated_at", models.DateTimeField(null=True)),
            ],
            options={"db_table": "erasures", "default_permissions": ("view",)},
        ),
        migrations.RunSQL(REVOKE, migrations.RunSQL.noop),
    ]
