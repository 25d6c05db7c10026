"""Parts of all apps' admin pages: tiles, lists without exact counts, CSV, search, periods."""
