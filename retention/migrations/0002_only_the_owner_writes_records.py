from django.db import migrations

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
    dependencies = [("retention", "0001_initial")]

    operations = [migrations.RunSQL(REVOKE, migrations.RunSQL.noop)]
