"""The parts of admin pages over big tables, for all apps: lists without counts, CSV, search, periods."""
