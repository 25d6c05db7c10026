"""The states of an e-mail, the outcomes of its attempts, its retries, and the SQL that settles.

`notifications.models` has the table and settles. `outbox.claim` claims and recovers. `notifications.by_hand`
does what a person decides.
"""
