"""manage.py commands about orders. Only manage.py imports them."""
