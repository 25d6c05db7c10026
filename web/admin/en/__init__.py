"""Django reads `formats` for the pages that it renders itself (FORMAT_MODULE_PATH)."""
