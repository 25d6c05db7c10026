"""Old rows leave as partitions: made ahead, detached, archived, searched, restored, erased, deleted.

`rollover` is the daily run over all steps, `purge` cleans the small tables, `person` says whose rows are
meant. Commands, the API, the admin, metrics and apps import it.
"""
