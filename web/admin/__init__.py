"""Parts of admin pages over big tables, for all apps: lists without exact counts, CSV, search, periods."""
