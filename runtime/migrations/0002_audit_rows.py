from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now

from runtime.database.ids import new_id

#: Every role but the owner may insert and read rows, and change only the reason and the address of one.
#: docker/app_role.sql does the same. But if it runs before the first migrate, as in Compose, its default
#: privileges give the app's role every right on a table that is made later.
RESTRICT = """
    DO $$
    DECLARE privilege record;
    BEGIN
        FOR privilege IN
            SELECT DISTINCT acl.grantee::regrole AS grantee
            FROM pg_class, aclexplode(relacl) AS acl
            WHERE pg_class.oid = 'audit_rows'::regclass AND acl.grantee NOT IN (0, relowner)
        LOOP
            EXECUTE format('REVOKE UPDATE, DELETE, TRUNCATE ON audit_rows FROM %s', privilege.grantee);
            EXECUTE format('GRANT UPDATE (reason, address) ON audit_rows TO %s', privilege.grantee);
        END LOOP;
    END
    $$
"""


class Migration(migrations.Migration):
    dependencies = [("runtime", "0001_initial_3")]

    operations = [
        migrations.RunSQL("SET LOCAL lock_timeout = '3s'", migrations.RunSQL.noop),
        migrations.CreateModel(
            name="AuditRow",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, default=new_id, editable=False)),
                ("at", models.DateTimeField(db_default=Now(), editable=False)),
                ("kind", models.CharField(max_length=30)),
                ("who", models.CharField(max_length=200)),
                ("address", models.CharField(max_length=60, default="", db_default="")),
                ("source", models.CharField(max_length=100, null=True)),
                ("order_id", models.UUIDField(null=True)),
                ("subject_type", models.CharField(max_length=100, default="", db_default="")),
                ("subject_id", models.CharField(max_length=255, default="", db_default="")),
                ("subject", models.CharField(max_length=200, default="", db_default="")),
                ("act", models.TextField()),
                ("changes", models.JSONField(null=True)),
                ("reason", models.TextField(default="", db_default="")),
            ],
            options={
                "db_table": "audit_rows",
                "verbose_name": "audit row",
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["at"], name="audit_rows_by_time"),
                    models.Index(
                        fields=["at"],
                        name="audit_rows_whole_address",
                        condition=~Q(address="") & ~Q(address__contains="/"),
                    ),
                    models.Index(
                        fields=["order_id"],
                        name="audit_rows_by_order",
                        condition=Q(order_id__isnull=False),
                    ),
                    models.Index(
                        fields=["subject_id"], name="audit_rows_by_subject", condition=~Q(subject_id="")
                    ),
                    models.Index(fields=["who", "-id"], name="audit_rows_by_who"),
                    models.Index(fields=["kind", "-id"], name="audit_rows_by_kind"),
                    models.Index(
                        fields=["source", "-id"],
                        name="audit_rows_by_source",
                        condition=Q(source__isnull=False),
                    ),
                ],
            },
        ),
        migrations.RunSQL(RESTRICT, migrations.RunSQL.noop),
    ]
