-- Prepare PostgreSQL (wal_level = logical) once for change data capture. This file may run again.
-- Run it as the tables' owner, who must be allowed to create roles:
--   psql "$PARTITION_DATABASE_URL" -f docker/debezium/setup.sql
--   psql "$PARTITION_DATABASE_URL" -c '\password orderpost_cdc'

-- The connector's role. It may read no table. But with another output plugin its password gives access to every
-- change of the server, so protect it like the owner's. pg_hba.conf needs a line with it for this database, and must
-- not have one for `replication`, with which the role could copy the whole server.
DO $$
BEGIN
    CREATE ROLE orderpost_cdc LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE;
EXCEPTION WHEN duplicate_object THEN NULL;
END
$$;

-- The connector gets only the ids of new rows, not addresses or texts. Changes of partitions have their table's name.
DO $$
BEGIN
    CREATE PUBLICATION orderpost_changes FOR TABLE email_notifications (id), outbox_events (id)
        WITH (publish = 'insert', publish_via_partition_root = true);
EXCEPTION WHEN duplicate_object THEN NULL;
END
$$;
