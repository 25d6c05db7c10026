"""One row that must be delivered: its columns, its states, and every statement that changes a state.

`queryset` has the changes; `claim_statement` and `settle_statement` are their SQL. Models and the drain
import it.
"""
