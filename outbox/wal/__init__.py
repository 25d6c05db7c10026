"""Follow PostgreSQL's write-ahead log, to notice at once that a session committed a due row.

`pgoutput` reads the messages. `publication` selects the tables. `stream` is one replication connection, and
`follower` reconnects when it is lost. `manage.py follow_wal` runs it.
"""
