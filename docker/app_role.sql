-- The role in DATABASE_URL of every process but migrate: it reads and writes rows, and can neither make nor drop
-- anything. Run by the role that owns the tables, which migrates and runs keep_partitions (its URL is
-- PARTITION_DATABASE_URL there and nowhere else). May be run again. Then set the password:
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
-- What later migrations make, too.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO orderpost_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO orderpost_app;

-- Settings stand here, on the role, because a pooler such as pgbouncer refuses or ignores them at connect.
-- No statement of a request or a worker takes this long; an erasure and an export lift the limit themselves.
ALTER ROLE orderpost_app SET statement_timeout = '30s';
-- A session that stopped in a transaction holds back vacuum and detaches.
ALTER ROLE orderpost_app SET idle_in_transaction_session_timeout = '60s';
-- For sessions that prepare every statement (?prepare_threshold=5): a generic plan cannot use a partial index.
-- Sessions that prepare only the statements of a change set `auto` themselves.
ALTER ROLE orderpost_app SET plan_cache_mode = force_custom_plan;
