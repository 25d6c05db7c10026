"""Many dead letters of one cause: four clicks from the first page to all of them sent."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.db.models.functions import Now
from playwright.sync_api import expect

from tests.browser.clicks import clicks_on
from tests.kit.jobs import run_jobs
from tests.kit.mails import make_mails, statuses
from tests.kit.waiting import until
from tests.kit.words import RETRY_BASE, BulkJob, EmailNotification, bulk
from tests.providers.conftest import smtp

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "direct"])]
__all__ = ["smtp"]  # a fixture

ERROR = "550 5.7.1 Client host [192.0.2.1] blocked using a block list"


@pytest.fixture
def blocked(settings, smtp, monkeypatch) -> int:
    """Make dead letters of one cause; jobs run when the test says so."""
    settings.EMAIL_PROVIDERS = ["smtp"]
    settings.FAST_PATH = False
    monkeypatch.setattr(bulk.waker, "wake", lambda: None)
    monkeypatch.setattr(bulk, "CHUNK", 10)
    make_mails(25, status="dead_lettered")
    EmailNotification.objects.dead().update(provider="smtp", last_error=ERROR)
    return 25


class Killed(BaseException):
    """The end of the worker."""


def test_it_takes_at_most_four_clicks_with_progress_and_a_kill_in_the_middle(open_page, blocked, monkeypatch):
    page = open_page("/admin/")
    page.get_by_role("link", name="blocks our provider").click()
    page.get_by_role("button", name="Resend all 25").click()
    expect(page.locator("#content")).to_contain_text("25 dead lettered: will be sent again")
    page.get_by_role("button", name="Yes, resend").click()
    expect(page.locator("#job [data-count=left]")).to_have_text("25")
    log, batches = bulk._log, []

    def dies_in_the_second(*arguments):
        log(*arguments)
        batches.append(1)
        if len(batches) == 2:
            raise Killed

    monkeypatch.setattr(bulk, "_log", dies_in_the_second)
    with pytest.raises(Killed):
        run_jobs()
    expect(page.locator("#job [data-count=done]")).to_have_text("10")  # by job.js
    assert page.locator("#job-bar").get_attribute("value") or page.locator("#job-bar").input_value()
    BulkJob.objects.update(updated_at=Now() - dt.timedelta(seconds=RETRY_BASE))
    call_command("drain_outbox")  # goes on with the job, and sends
    expect(page.locator("#job .pill")).to_have_text("done")  # job.js has loaded the page anew
    # On a busy machine a provider's answer may come too late, so an e-mail is sent by a later drain.
    until(lambda: statuses() == {"sent": 25}, meanwhile=lambda: call_command("drain_outbox"))
    assert LogEntry.objects.values("object_id").distinct().count() == LogEntry.objects.count() == 25
    assert clicks_on(page) <= 4


def test_a_running_job_is_stopped_by_its_button(open_page, blocked):
    page = open_page("/admin/notifications/emailnotification/causes/", width=375, dark=True)
    page.get_by_role("button", name="Give up all 25").press("Enter")
    page.get_by_role("button", name="Yes, give up").press("Enter")
    page.get_by_role("button", name="Stop").press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("Stopped.")
    run_jobs()
    assert statuses() == {"dead_lettered": 25}
    assert BulkJob.objects.get().state == "stopped"


def test_the_box_of_every_page_leads_to_an_email(open_page, blocked):
    mail = EmailNotification.objects.earliest("id")
    page = open_page("/admin/")
    page.keyboard.press("/")
    page.keyboard.type(str(mail.id))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/emailnotification/{mail.id}/change/")
    assert clicks_on(page) == 0


def test_a_list_is_narrowed_to_two_dates(open_page, blocked):
    page = open_page("/admin/notifications/emailnotification/?status=dead_lettered")
    page.get_by_label("To the end of").fill("2020-01-01")
    page.locator("form.period button").click()
    expect(page.locator("#result_list")).to_have_count(0)
    assert "status=dead_lettered" in page.url
