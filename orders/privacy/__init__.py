"""Export and erase a person's data.

`jobs` runs both in the background. `persons` decides which rows are a person's.
"""
