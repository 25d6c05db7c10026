"""Django's PostgreSQL backend with a deadline on the client's side for every wait.

A PostgreSQL that is frozen, or behind a network that drops packets, keeps its TCP connections open: neither
`statement_timeout` nor `tcp_user_timeout` ends the wait for it. See `base.py`.
"""
