"""Pages have the times of the person's browser: lists, filters, jobs over a filtered list, but not files."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from runtime.database.periods import freeze_period, narrow_to_period
from tests.kit.admin import ORDERS, downloaded
from tests.kit.orders import make_order
from tests.kit.words import Order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]
#: Ten past midnight in Berlin, and still the day before in UTC.
AT = dt.datetime(2026, 11, 28, 23, 10, tzinfo=dt.UTC)


@pytest.fixture
def german(admin_client: Any) -> Any:
    make_order(reference="A-1", created_at=AT)
    admin_client.cookies["zone"] = "Europe/Berlin"
    return admin_client


def test_lists_have_the_browsers_time_and_files_that_of_utc(german):
    page = german.get(ORDERS).content.decode()
    assert "2026-11-29 00:10:00" in page and ">Europe/Berlin<" in page
    (row,) = downloaded(german, ORDERS)
    assert row["created_at"] == "2026-11-28T23:10:00+00:00"


@pytest.mark.parametrize(("day", "is_listed"), [("2026-11-28", False), ("2026-11-29", True)])
def test_a_filter_reads_days_of_the_browser_and_shows_the_same_ones(german, day, is_listed):
    page = german.get(ORDERS, {"since": day, "until": day}).content.decode()
    assert (">A-1</a>" in page) is is_listed
    assert all(f'type="date" name="{name}" value="{day}"' in page for name in ("since", "until"))


def test_a_frozen_filter_means_the_same_in_a_worker_whose_time_is_utc(german):
    with timezone.override("Europe/Berlin"):
        typed = {"since": "2026-11-29", "until": "2026-11-29"}
        frozen = freeze_period(typed, now=timezone.now())
    assert frozen == {"since": "2026-11-28T23:00:00+00:00", "until": "2026-11-29T23:00:00+00:00"}
    rows = narrow_to_period(Order.objects.all(), frozen, now=timezone.now(), column="created_at")
    assert rows.count() == 1
    page = german.get(ORDERS, frozen).content.decode()
    assert page.count('name="since" value="2026-11-29"') == page.count('name="until" value="2026-11-29"') == 1
    assert ">A-1</a>" in page


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../../etc/passwd", "localtime", "x" * 5000, "Europe"])
def test_an_unknown_zone_is_utc(german, zone):
    german.cookies["zone"] = zone
    assert "2026-11-28 23:10:00" in german.get(ORDERS).content.decode()


def test_a_request_of_the_api_has_no_such_zone(german):
    german.get(ORDERS)
    assert timezone.get_current_timezone_name() == "UTC"


def test_charts_end_in_the_browsers_time(german):
    ends = re.findall(r'<span class="chart-times"><span>[^<]+</span><span>(\d\d):', admin_front(german))
    now = dt.datetime.now(ZoneInfo("Europe/Berlin"))
    assert ends and set(ends) <= {f"{now - dt.timedelta(minutes=ago):%H}" for ago in (0, 5)}


def admin_front(client: Any) -> str:
    page: str = client.get("/admin/").content.decode()
    return page
