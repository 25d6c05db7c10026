"""The commands of partitions. Only manage.py imports them."""
