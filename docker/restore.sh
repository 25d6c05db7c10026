#!/bin/sh
# Restore PostgreSQL from a base backup and archived WAL to a moment, with delivery, relay and consumers paused.
#   docker/restore.sh BACKUP ARCHIVE DATA TIME
# BACKUP   a directory that pg_basebackup made, plain or with base.tar or base.tar.gz in it
# ARCHIVE  the directory that archive_command copies to
# DATA     the new data directory: missing or empty
# TIME     such as '2026-11-21 20:15:00+00', or `latest` for the end of the archive
# Run it as the account that runs PostgreSQL, with PostgreSQL's programs in PATH. PGUSER and PGDATABASE name a
# superuser and the database (both orderpost by default). Other clients cannot connect before it exits.
set -eu
[ $# -eq 4 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
backup=$1 archive=$2 data=$3 time=$4
export PGUSER="${PGUSER:-orderpost}" PGDATABASE="${PGDATABASE:-orderpost}"
if [ -d "$data" ] && [ -n "$(ls -A "$data")" ]; then
    echo "$data is not empty, so nothing was restored." >&2
    exit 1
fi
mkdir -p "$data"
if [ -f "$backup/base.tar.gz" ]; then tar -xzf "$backup/base.tar.gz" -C "$data"
elif [ -f "$backup/base.tar" ]; then tar -xf "$backup/base.tar" -C "$data"
else cp -a "$backup/." "$data"; fi
chmod 700 "$data"
# Debian keeps this file outside the data directory, and PostgreSQL does not start without one.
[ -e "$data/postgresql.conf" ] || : > "$data/postgresql.conf"
{
    echo "restore_command = 'cp \"$archive/%f\" \"%p\"'"
    echo "recovery_target_action = 'promote'"
    [ "$time" = latest ] || echo "recovery_target_time = '$time'"
} >> "$data/postgresql.auto.conf"
touch "$data/recovery.signal"

# Only a socket in this directory leads in, whatever port and pg_hba.conf the backup has.
private=$(mktemp -d)
echo "local all all trust" > "$private/pg_hba.conf"
export PGPORT=5432
trap 'pg_ctl -D "$data" -m immediate stop > /dev/null 2>&1 || true; rm -rf "$private"' EXIT
pg_ctl -D "$data" -s -w -t 86400 -l "$data/restore.log" start \
    -o "-c listen_addresses='' -c unix_socket_directories='$private' -c port=$PGPORT -c hba_file='$private/pg_hba.conf' \
        -c archive_mode=off -c hot_standby=off" ||
    { tail -n 5 "$data/restore.log" >&2; exit 1; }
ask() { psql -h "$private" -X -q -A -t -v ON_ERROR_STOP=1 "$@"; }
until [ "$(ask -c 'SELECT pg_is_in_recovery()' 2> /dev/null)" = f ]; do
    pg_ctl -D "$data" -s status > /dev/null || { tail -n 5 "$data/restore.log" >&2; exit 1; }
    sleep 0.2
done
[ "$time" = latest ] && time=$(ask -c "SELECT coalesce(pg_last_xact_replay_timestamp(), to_timestamp(0))")
if [ -z "$(ask -c "SELECT to_regclass('pauses')")" ]; then
    echo "The backup is older than manage.py pause. Run migrate and pause --all --restored-to '$time' before you start anything." >&2
else
    ask -v time="$time" <<'SQL'
DELETE FROM pauses;
INSERT INTO pauses (part, reason, username, restored_to)
SELECT part, 'restored from a backup', 'restore.sh', :'time' FROM unnest(ARRAY['delivery', 'relay', 'consumers']) AS part;
SQL
fi
last=$(ask -c 'SELECT pg_last_xact_replay_timestamp()')
for name in restore_command recovery_target_action recovery_target_time; do ask -c "ALTER SYSTEM RESET $name"; done
pg_ctl -D "$data" -s -w -m fast stop
trap - EXIT
rm -rf "$private"
echo "Restored to $time. Time of the last replayed transaction: ${last:-before the end of the backup}. All is paused."
