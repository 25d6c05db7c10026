"""manage.py commands of the engine. Only manage.py imports them; apps' commands import `progress`."""
