"""Export and erase a person: orders, e-mails, answers, archives. For the admin and `manage.py privacy`."""
