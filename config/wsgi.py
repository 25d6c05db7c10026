"""The WSGI application, for config.web or any other WSGI server."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_wsgi_application()

import threading  # noqa: E402

from notifications.content.template_checks import warm_up  # noqa: E402 - needs the apps
from orders.emails import SAMPLE  # noqa: E402
from runtime.process.heap import freeze_heap  # noqa: E402
from runtime.process.presence import keep_beating  # noqa: E402
from runtime.telemetry.health import WEB  # noqa: E402
from runtime.telemetry.metrics_server import watch  # noqa: E402
from web.heartbeat import beat_forever  # noqa: E402

warm_up(sample=SAMPLE)
watch(WEB)
keep_beating(WEB)
# This process receives the providers' webhooks, and a hold depends on how long it has done so.
threading.Thread(target=beat_forever, name="heartbeat", daemon=True).start()
freeze_heap()
