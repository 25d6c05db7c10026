"""The web process: `gunicorn config.wsgi:application`."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_wsgi_application()

import threading  # noqa: E402

from notifications.delivery.pulse import pulse  # noqa: E402 - needs the apps
from notifications.rendering import warm_up  # noqa: E402

warm_up()  # so that no request pays for first uses
# This process takes the providers' webhooks: sends that wait for evidence ask how long it has been there.
threading.Thread(target=pulse, name="pulse", daemon=True).start()
