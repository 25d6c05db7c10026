"""One person's rows: found and erased in live tables, detached tables, archives and stored answers."""
