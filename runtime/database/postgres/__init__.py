"""Django's PostgreSQL backend with a deadline on the client's side for every wait.

The TCP connections of a frozen PostgreSQL stay open, and neither `statement_timeout` nor `tcp_user_timeout`
ends a wait for it. See `base.py`.
"""
