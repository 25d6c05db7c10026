"""Write, read and restore detached months as files. `archive` writes one.

`rollover`, `people`, commands and the pages that show old rows import it.
"""
