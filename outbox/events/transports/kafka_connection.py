"""Connect to Kafka: the configuration of producers, consumers and `make_topics`.

librdkafka answers a failed call with "timed out" or "transport failure", and passes the reason (a wrong
password, an unknown certificate, a refused connection) to a callback. `Reasons` combines the two.
"""

from __future__ import annotations

import logging
from typing import Any

import confluent_kafka as kafka
from django.conf import settings

#: Without a logger, librdkafka writes its lines to stderr.
LOGGER = logging.getLogger("confluent_kafka")


class Reasons:
    """The last reason why no broker was reached. Pass `keep` as `error_cb`."""

    def __init__(self) -> None:
        self._last = ""

    def keep(self, error: Any) -> None:
        """Keep a reason. Prefer others to "all brokers are down", which explains nothing."""
        if error.code() != kafka.KafkaError._ALL_BROKERS_DOWN or not self._last:
            self._last = error.str()

    def explain(self, error: Any) -> str:
        """Return the text of an error with the last reason."""
        text: str = error.args[0].str() if isinstance(error, kafka.KafkaException) else error.str()
        return f"{text}: {self._last}" if self._last and self._last not in text else text

    def forget(self) -> None:
        """Forget the last reason, because a broker was reached since."""
        self._last = ""


def connection() -> dict[str, Any]:
    """Return the configuration that every client needs."""
    protocol = settings.KAFKA_SECURITY_PROTOCOL
    found: dict[str, Any] = {
        "bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS,
        "security.protocol": protocol,
    }
    if protocol.startswith("SASL"):
        found |= {
            "sasl.mechanism": settings.KAFKA_SASL_MECHANISM,
            "sasl.username": settings.KAFKA_SASL_USERNAME,
            "sasl.password": settings.KAFKA_SASL_PASSWORD,
        }
    if protocol.endswith("SSL"):
        given = {
            "ssl.ca.pem": settings.KAFKA_SSL_CA,
            "ssl.certificate.pem": settings.KAFKA_SSL_CERTIFICATE,
            "ssl.key.pem": settings.KAFKA_SSL_KEY,
            "ssl.key.password": settings.KAFKA_SSL_KEY_PASSWORD,
        }
        found |= {name: value for name, value in given.items() if value}
    return found
