"""Write, read and restore detached months as files. `archive` writes one."""
