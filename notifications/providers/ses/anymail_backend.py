"""Anymail's SES backend, with clients of one shared session that do not repeat a request.

Django imports it by its dotted path for the first mail to SES.
"""

from __future__ import annotations

import functools
import threading

import boto3
from anymail.backends.amazon_ses import EmailBackend
from botocore.config import Config
from django.conf import settings

from notifications.providers.http import UnreadAnswer

_making = threading.Lock()


@functools.cache
def _session(region: str | None) -> boto3.session.Session:
    """Return the session, which loads AWS' data and credentials once. Each client then takes only 1.5 ms."""
    return boto3.session.Session(region_name=region)


class Backend(UnreadAnswer, EmailBackend):
    """One client with one connection; each sending thread has its own."""

    def open(self) -> bool:
        """Create the client. Raise botocore's errors for a missing or bad region."""
        if self.client:
            return False
        config = Config(
            connect_timeout=settings.EMAIL_CONNECT_TIMEOUT,
            read_timeout=settings.EMAIL_READ_TIMEOUT,
            retries={"total_max_attempts": 1, "mode": "standard"},  # overrides AWS_MAX_ATTEMPTS
            max_pool_connections=1,
        )
        with _making:  # many threads may use clients at once, but not create them
            self.client = _session(settings.AWS_REGION).client(
                "sesv2",
                config=self.client_params["config"].merge(config),
            )
        return True
