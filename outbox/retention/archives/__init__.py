"""Write, index, search and restore detached partitions as files. `archive` writes one.

`rollover`, `people`, commands and the pages that show old rows import it.
"""
