"""The list, the page of one e-mail, jobs and the API agree on what a person may do with an e-mail."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models.functions import Now
from django.test import Client

from runtime.audit import Actor
from tests.kit.api import Api, make_token
from tests.kit.jobs import act as act_on
from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.words import (
    BulkJob,
    EmailNotification,
    Status,
    Suppression,
    SuppressionReason,
    job_waker,
    read_database_time,
    start_job,
    suppress,
    transitions,
)
from tests.kit.words import mail_services as services

pytestmark = pytest.mark.django_db(transaction=True)  # a refused copy rolls back its whole transaction
LIST = "/admin/notifications/emailnotification/"
#: The states from which each act is possible.
ALLOWED = {
    "give_up": transitions.DISCARD.before,
    "resend": transitions.RESEND.before,
    "copy": transitions.ENDED,
}
AFTER = {"give_up": transitions.DISCARD.to, "resend": transitions.RESEND.to}
#: An act for which a held e-mail must wait. A copy is a new e-mail, so it does not wait.
WAITING = ("give_up", "resend")
UNTIL = re.compile(r"it is held for the provider(?:'|&#x27;)s evidence until (\d{4}-\d\d-\d\d \d\d:\d\d) UTC")
Says = tuple[bool, str]  # whether the act is possible, and what else was said


@pytest.fixture(autouse=True)
def _no_wake_ups(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FAST_PATH = False
    settings.AMBIGUOUS_HOLD_SECONDS = 3600
    monkeypatch.setattr(job_waker, "wake", lambda: None)


def stored(status: str, *, held: bool) -> EmailNotification:
    """Insert an e-mail. If `held`, its last attempt may have been accepted."""
    doubt = {"at": read_database_time().isoformat(), "outcome": "ambiguous", "code": "", "text": ""}
    return make_mail(
        order_id=make_order().id,
        status=status,
        errors=[doubt] if held else [],
        next_attempt_at=Now() + dt.timedelta(seconds=60),
    )


def by_service(client: Client, act: str, mail: EmailNotification) -> Says:
    changes, refusals = getattr(services, act)(ids=[mail.id])
    return bool(changes), " ".join(refusal.text for refusal in refusals)


def by_list(client: Client, act: str, mail: EmailNotification) -> Says:
    page = act_on(client, act, [mail.id]).content.decode()
    return EmailNotification.objects.get(id=mail.id).status != mail.status, page


def by_page(client: Client, act: str, mail: EmailNotification) -> Says:
    page = client.get(f"{LIST}{mail.id}/change/").content.decode()
    button = "Send a copy to another address …" if act == "copy" else f'name="action" value="{act}"'
    return button in page, page


def by_job(client: Client, act: str, mail: EmailNotification) -> Says:
    user = User.objects.get(username="admin")
    job = start_job(action=f"notifications.{act}", filter={"status": mail.status}, user=user, by=Actor("x"))
    run_jobs()
    job = BulkJob.objects.get(id=job.id)
    return job.done_count == 1, " ".join(job.refusals)


def by_api(client: Client, act: str, mail: EmailNotification) -> Says:
    path = {"give_up": "discard", "resend": "resend", "copy": "copies"}[act]
    response = Api(make_token()).post(f"/api/v1/notifications/{mail.id}/{path}")
    return response.status_code < 300, str(response.json().get("detail", ""))


def by_copy_page(client: Client, act: str, mail: EmailNotification) -> Says:
    data = {"recipient_email": mail.recipient_email}
    page = client.post(f"/admin/orders/order/copies/{mail.id}/", data).content.decode()
    return EmailNotification.objects.filter(resend_of=mail.id).exists(), page


#: Where a person can do each act.
PLACES: Mapping[str, tuple[Callable[[Client, str, EmailNotification], Says], ...]] = {
    "give_up": (by_service, by_list, by_page, by_job, by_api),
    "resend": (by_service, by_list, by_page, by_job, by_api),
    "copy": (by_copy_page, by_page, by_api),
}


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
@pytest.mark.parametrize("status", Status.values)
@pytest.mark.parametrize("act", ALLOWED)
def test_every_place_allows_an_act_in_the_same_states_and_says_until_when_a_held_email_waits(
    admin_client: Client, act: str, status: str, held: bool
) -> None:
    waits = held and act in WAITING and status in ("pending", "failed", "dead_lettered")
    waits = waits and status in ALLOWED[act]
    said, texts, kept = {}, {}, {}
    for place in PLACES[act]:
        EmailNotification.objects.all().delete()
        mail = stored(status, held=held)
        said[place], texts[place] = place(admin_client, act, mail)
        kept[place] = EmailNotification.objects.get(id=mail.id).status
    allowed = status in ALLOWED[act] and not waits
    assert said == dict.fromkeys(PLACES[act], allowed)
    if waits:
        times = [UNTIL.search(text) for text in texts.values()]
        assert all(times), texts
        until = {dt.datetime.fromisoformat(f"{time[1]}+00:00") for time in times if time}
        assert all(3500 < (time - read_database_time()).total_seconds() < 3700 for time in until)
    changed = AFTER.get(act, status) if allowed else status
    assert {state for place, state in kept.items() if place is not by_page} == {changed}


@pytest.mark.parametrize("place", PLACES["resend"])
def test_no_place_resends_to_an_address_that_is_still_suppressed(
    admin_client: Client, place: Callable[[Client, str, EmailNotification], Says]
) -> None:
    mail = stored("suppressed", held=False)
    suppress([SuppressionReason(mail.recipient_email, Suppression.Reason.HARD_BOUNCE)])
    assert place(admin_client, "resend", mail)[0] is False


def test_the_page_offers_no_copy_of_an_erased_email(admin_client: Client) -> None:
    mail = make_mail(status="discarded", recipient_email="erased@privacy.invalid")
    assert by_page(admin_client, "copy", mail)[0] is False
