"""Export and erase a person's data. For the admin and `manage.py privacy`."""
