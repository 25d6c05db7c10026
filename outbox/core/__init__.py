"""The database backend by its path of release 0.1.0, for settings that name it. Removed in 0.3."""
