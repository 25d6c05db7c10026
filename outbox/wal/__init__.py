"""Follow PostgreSQL's write-ahead log, to learn at once that somebody committed a row that is due.

`pgoutput` reads the messages, `publication` says which tables are in them, `stream` is one replication
connection, `follower` the thread that always has one. Run by `manage.py follow_wal`.
"""
