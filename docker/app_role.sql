-- The role that web, worker, beat, standby, relay and consumer log in as: it reads and writes rows, and can
-- neither make nor drop anything. Run once, by the role that owns the tables (that of PARTITION_DATABASE_URL,
-- which migrates and runs the partition commands); then set the password:
--   psql "$PARTITION_DATABASE_URL" -f docker/app_role.sql
--   psql "$PARTITION_DATABASE_URL" -c '\password orderpost_app'
CREATE ROLE orderpost_app LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO orderpost_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO orderpost_app;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO orderpost_app;
-- What later migrations make, too.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO orderpost_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO orderpost_app;
-- The session of a host that is gone ends within a minute, and so do its locks: see docs/operations.md.
ALTER ROLE orderpost_app SET tcp_keepalives_idle = 10;
ALTER ROLE orderpost_app SET tcp_keepalives_interval = 10;
ALTER ROLE orderpost_app SET tcp_keepalives_count = 3;
ALTER ROLE orderpost_app SET tcp_user_timeout = '30s';
ALTER ROLE orderpost_app SET client_connection_check_interval = '5s';
ALTER ROLE orderpost_app SET idle_in_transaction_session_timeout = '60s';
