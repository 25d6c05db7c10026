"""The states of an e-mail, the outcomes of its attempts, its retries, and the SQL that claims and settles.

`notifications.models` has the table and the verbs.
"""
