"""`celery -A benchmarks.peers.celery worker`: one task for each mail, each thread with its own connection."""

from __future__ import annotations

import os
import threading

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.settings"

from typing import Any

from celery import Celery
from django.core.mail import EmailMultiAlternatives, get_connection
from django.db.models.functions import Now

app = Celery("peers")
app.config_from_object("django.conf:settings", namespace="CELERY")
_local = threading.local()


def _connection() -> Any:
    if not hasattr(_local, "connection"):
        _local.connection = get_connection("anymail.backends.sendgrid.EmailBackend")
        _local.connection.open()
    return _local.connection


@app.task(name="peers.send")
def send(mail_id: int) -> None:
    """Send one mail if it was not sent before."""
    from benchmarks.peers.models import Mail

    mail = Mail.objects.get(id=mail_id)
    if mail.status == "sent":
        return
    message = EmailMultiAlternatives(
        mail.subject, mail.text, "orders@example.com", [mail.recipient], connection=_connection()
    )
    message.attach_alternative(mail.html, "text/html")
    message.send()
    Mail.objects.filter(id=mail_id).update(status="sent", sent_at=Now())
