"""The web process: `gunicorn config.wsgi:application`."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_wsgi_application()

from notifications.rendering import warm_up  # noqa: E402 - needs the apps

warm_up()  # so that no request pays for first uses
