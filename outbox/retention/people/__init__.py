"""Read and erase one person's rows in live tables, detached tables, archives and stored answers.

orders.privacy, orders.timeline and `rollover` import it.
"""
