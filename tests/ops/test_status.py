"""`manage.py status` says what is unfinished and what needs a person."""

from __future__ import annotations

import datetime as dt
import io
import json

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db.models.functions import Now

from tests.kit.mails import make_mail
from tests.kit.words import BulkJob, Heartbeat, bulk


@pytest.fixture(autouse=True)
def valkey(valkey_url, settings):
    settings.REDIS_URL = valkey_url


def status(*options: str) -> str:
    output = io.StringIO()
    call_command("status", *options, stdout=output)
    return output.getvalue()


def test_a_quiet_shop_needs_nobody(db):
    Heartbeat.beat(name="poll")
    found = json.loads(status("--json"))
    assert found["needs"] == []
    assert found["emails"]["pending"] == 0 and found["rates"]["emails_sent"] == 0
    assert [one["state"] for one in found["providers"]] == ["closed"]
    assert {one["seconds"] for one in found["consumers"]} == {0.0}
    assert "nothing needs a person" in status()


def test_it_names_what_needs_a_person(db, settings):
    make_mail(status="dead_lettered")
    make_mail(created_at=Now() - dt.timedelta(hours=2))
    found = json.loads(status("--json"))
    needs = " | ".join(found["needs"])
    assert "1 dead letters: resend them or give them up" in needs
    assert "unfinished for more than an hour" in needs and "no process polls" in needs
    text = status()
    assert "! 1 dead letters" in text and "sendgrid" in text and "email_notifications" in text


def test_it_names_failed_jobs_until_somebody_decides(db):
    user = User.objects.create_superuser("ann")
    job = bulk.start_job(action="notifications.resend", filter={"status": "sent"}, user=user)
    sentence = "1 background jobs failed: restart or stop them in the admin, under Jobs"
    assert sentence not in json.loads(status("--json"))["needs"]
    BulkJob.objects.fail(id=job.id, error="a defect")
    found = json.loads(status("--json"))
    assert sentence in found["needs"] and found["failed_jobs"] == 1
    assert f"! {sentence}" in status()
    BulkJob.objects.stop(id=job.id)
    assert sentence not in json.loads(status("--json"))["needs"]


def test_it_goes_on_without_valkey(db, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    found = json.loads(status("--json"))
    assert found["providers"] is None and found["consumers"] is None
    assert found["needs"][0].startswith("Valkey does not answer")
    assert "Valkey does not answer" in status()
