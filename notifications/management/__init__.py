"""The command of mail profiles. Only manage.py imports it."""
