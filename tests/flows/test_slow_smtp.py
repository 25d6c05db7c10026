"""A provider that is slow and lives: an SMTP server that takes its time for each reply."""

from __future__ import annotations

import pytest

from local.machine import HOST
from tests.flows.test_outages import doubled, insert_mails
from tests.kit.shop import Shop
from tests.kit.smtp import SmtpServer

pytestmark = pytest.mark.flow

COUNT = 40


@pytest.mark.drill
def test_a_mail_that_takes_longer_than_the_time_outs_together_is_sent_once():
    # Each reply comes within EMAIL_READ_TIMEOUT, and all of a mail's take longer than both time-outs. In
    # production: 4 s for each reply, with 3 and 10.
    settings = {"EMAIL_CONNECT_TIMEOUT": "1.9", "EMAIL_READ_TIMEOUT": "1.9", "LEASE_SECONDS": "60"}
    settings |= {"EMAIL_PROVIDERS": "smtp", "EMAIL_CONCURRENCY": "8", "EMAIL_RATE_LIMIT": "0"}
    with Shop(proxied=False, durable_valkey=False, **settings) as shop:
        with SmtpServer(sandbox=shop.sandbox, delay=0.8) as server:
            shop.settings |= {"EMAIL_URL": f"smtp://{HOST}:{server.port}"}
            shop.start("worker", "worker:2", "beat")
            insert_mails(shop, COUNT)
            shop.until(lambda: shop.all_sent(COUNT), "all is sent")
        assert doubled(shop) == 0
        assert sum(shop.accepted().values()) == COUNT
        assert set(shop.rows("retry_count, errors::text")) == {(0, "[]")}
