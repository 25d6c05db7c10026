"""Rows that must be delivered: their columns, their states, and every statement that changes a state.

`queryset` has the transitions. `claim_statement` and `settle_statement` have their SQL.
"""
