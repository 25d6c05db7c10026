"""manage.py commands of the engine. The commands of apps import their progress bar and `pause`."""
