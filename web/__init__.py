"""Parts of every endpoint and of every admin page: tokens, keys, problems, lists, search, CSV, and tiles."""
