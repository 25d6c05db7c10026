"""The states of an e-mail, the outcomes of its attempts, its errors, and the value of a claim. All pure.

`notifications.changes` writes outcomes and does what a person decides. `outbox.claim` claims and recovers.
"""
