"""Make, detach, archive, restore, erase and delete partitions: old rows leave the tables.

`rollover` is the daily run of all steps. `purge` deletes old rows of the small tables. `rows_of_person` reads
and erases one person's rows.
"""
