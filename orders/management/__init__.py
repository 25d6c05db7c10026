"""manage.py commands about orders."""
