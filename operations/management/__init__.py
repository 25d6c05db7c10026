"""The engine's manage.py commands. The commands of other apps import the progress bar and `pause`."""
