"""PostgreSQL: Django's backend with deadlines, statements, transactions, clock, ids, and periods.

Every other folder may import it. It imports none, so that it can be understood alone.
"""
