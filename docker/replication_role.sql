-- The role of `manage.py follow_wal` in REPLICATION_DATABASE_URL. It receives changes and owns nothing.
-- REPLICATION lets a role read every change of every table of the cluster, so give its password only to that process.
-- Run this file as a superuser; it may run again. A managed PostgreSQL has its own way, such as
-- GRANT rds_replication. Afterwards:
--   psql "$PARTITION_DATABASE_URL" -c '\password orderpost_follower'
--   manage.py follow_wal --make-publications      (as the tables' owner)
DO $$
BEGIN
    CREATE ROLE orderpost_follower LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE;
EXCEPTION WHEN duplicate_object THEN NULL;
END
$$;
