-- What change data capture needs of PostgreSQL (wal_level = logical), once. May be run again.
-- Run by the tables' owner, who must be allowed to make roles:
--   psql "$PARTITION_DATABASE_URL" -f docker/debezium/setup.sql
--   psql "$PARTITION_DATABASE_URL" -c '\password orderpost_cdc'

-- The connector's role. It may read no table, but whoever has its password can follow every change of the server
-- with another output plugin: keep it as you keep the owner's. It needs a line for this database in pg_hba.conf,
-- and none for `replication`, with which it could copy the whole server.
DO $$
BEGIN
    CREATE ROLE orderpost_cdc LOGIN REPLICATION NOSUPERUSER NOCREATEDB NOCREATEROLE;
EXCEPTION WHEN duplicate_object THEN NULL;
END
$$;

-- Ids of new rows and nothing else reach the connector: no address, no text. All partitions go by their table's name.
DO $$
BEGIN
    CREATE PUBLICATION orderpost_changes FOR TABLE email_notifications (id), outbox_events (id)
        WITH (publish = 'insert', publish_via_partition_root = true);
EXCEPTION WHEN duplicate_object THEN NULL;
END
$$;
