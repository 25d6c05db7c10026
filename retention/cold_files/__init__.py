"""Write, read and restore detached months as files. `archive` writes one.

`rollover`, `rows_of_person`, commands and the pages that show old rows import it.
"""
