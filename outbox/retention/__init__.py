"""Old months leave as partitions: made ahead, detached, archived, searched, restored, erased from, deleted.

`rollover` is the daily run over all steps, `purge` cleans the small tables, `person` says whose rows are
meant. Commands, the admin and apps that export or erase a person import it.
"""
