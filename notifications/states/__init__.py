"""The states of an e-mail, the outcomes of its attempts, its errors, and the value of a claim. All pure.

`notifications.settle` writes outcomes, `outbox.claim` claims and recovers, and `notifications.manual_actions`
does what a person decides.
"""
