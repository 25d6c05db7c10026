"""Django's PostgreSQL backend with a deadline on the client's side for every wait.

If PostgreSQL is frozen, its TCP connections stay open, so neither `statement_timeout` nor `tcp_user_timeout`
stops a wait for it. See `base.py`.
"""
