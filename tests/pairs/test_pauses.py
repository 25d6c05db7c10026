"""A pause of the delivery, and what else changes the e-mails that wait for its end."""

from __future__ import annotations

import pytest

from notifications.models import EmailNotification
from orders.privacy.erasure import erase_person
from orders.services import pay_order
from outbox.models import Pause
from tests.factories import statuses
from tests.outbox.events.inbound import order
from tests.outbox.retention.months import Steps

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


def test_an_email_that_waits_for_the_end_of_a_pause_is_not_sent_after_its_person_was_erased(archive_folder):
    one = order()
    pay_order(order_id=one.id)
    Pause.objects.pause(parts=["delivery"], reason="", username="x")
    erase_person(email=one.email, report=Steps(), force=True)
    Pause.objects.resume(parts=["delivery"], username="x")
    assert EmailNotification.objects.claim(limit=5) == []
    assert statuses() == {"discarded": 1}
