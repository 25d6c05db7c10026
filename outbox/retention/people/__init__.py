"""One person's rows, in live tables, detached tables, archives and stored answers: read and erased.

orders.privacy, orders.timeline and `rollover` import it.
"""
