-- The role in DATABASE_URL of every process except migrate. It reads and writes rows, but cannot create or drop
-- tables. Run this file as the role that owns the tables; it may run again. The owner migrates and runs
-- keep_partitions, and only these have its URL in PARTITION_DATABASE_URL. Afterwards set the password:
--   psql "$PARTITION_DATABASE_URL" -f docker/app_role.sql
--   psql "$PARTITION_DATABASE_URL" -c '\password orderpost_app'
DO $$
BEGIN
    CREATE ROLE orderpost_app LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE;
EXCEPTION WHEN duplicate_object THEN NULL;
END
$$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO orderpost_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO orderpost_app;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO orderpost_app;
-- Grant the same for tables and sequences of later migrations.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO orderpost_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO orderpost_app;

-- The owner's processes trust what these tables say: which tables to drop, restore or migrate. So only the owner
-- writes them. This comes after the grants. A migration does the same for tables that were made after this file ran.
DO $$
BEGIN
    REVOKE INSERT, UPDATE, DELETE ON detached_partitions, django_migrations FROM orderpost_app;
EXCEPTION WHEN undefined_table THEN NULL;
END
$$;

-- Nobody but the owner takes an act out of the audit, which happens after ARCHIVE_YEARS. The app can change two columns:
-- the reason, which an erasure empties, and the address, of which only the network is kept after 90 days.
DO $$
BEGIN
    REVOKE UPDATE, DELETE, TRUNCATE ON audit_rows FROM orderpost_app;
    GRANT UPDATE (reason, address) ON audit_rows TO orderpost_app;
EXCEPTION WHEN undefined_table THEN NULL;
END
$$;

-- The role has these settings, because a pooler such as pgbouncer refuses or ignores them when a client connects.
-- No statement of a request or a worker takes this long. An erasure and an export lift the limit.
ALTER ROLE orderpost_app SET statement_timeout = '30s';
-- A request that waits for a row answers 503 before it would count the server as silent, which takes 4 seconds.
ALTER ROLE orderpost_app SET lock_timeout = '3s';
-- A process that is frozen in a transaction keeps an order locked, and blocks vacuum and detaches.
ALTER ROLE orderpost_app SET idle_in_transaction_session_timeout = '10s';
