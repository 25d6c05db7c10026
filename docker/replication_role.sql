-- The role of `manage.py follow_wal` in REPLICATION_DATABASE_URL: it receives changes, and owns nothing.
-- REPLICATION lets a role read every change of every table of the cluster, so keep its password to that one process.
-- Run by a superuser (a managed PostgreSQL has its own way, such as GRANT rds_replication); may be run again. Then:
--   psql "$PARTITION_DATABASE_URL" -c '\password orderpost_follower'
--   manage.py follow_wal --make-publications      (as the tables' owner)
DO $$
BEGIN
    CREATE ROLE orderpost_follower LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE;
EXCEPTION WHEN duplicate_object THEN NULL;
END
$$;
