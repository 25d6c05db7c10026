"""A detached partition as files: written, indexed, searched, restored. `archive` writes one.

`rollover`, `people`, commands and what shows old rows import it.
"""
