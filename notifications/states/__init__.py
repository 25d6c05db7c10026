"""The states of a row that must be delivered, the outcomes of its attempts, and its retries. Pure values.

`notifications.models` has the table and the transitions.
"""
