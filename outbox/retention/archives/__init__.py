"""A detached month as files: written, indexed, searched, restored. `archive` turns a month into one."""
