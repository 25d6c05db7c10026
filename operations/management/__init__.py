"""The commands of an operator: status, pauses, tokens, health, restores. Only manage.py imports them."""
