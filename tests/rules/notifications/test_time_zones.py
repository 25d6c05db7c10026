"""Dates are those of the order's time zone, else of the profile's, else of UTC."""

from __future__ import annotations

import dataclasses
import datetime as dt

import pytest

from notifications.content.profiles import from_settings
from notifications.models import MailProfile
from notifications.profile_form import as_document, form_of
from runtime.time_zones import find_zone, is_zone_name
from tests.kit.words import SAMPLE, render_email

#: The evening of 27 November in Los Angeles.
EVENING = dt.datetime(2026, 11, 28, 4, 30, tzinfo=dt.UTC)
NBSP = "\N{NO-BREAK SPACE}"


def shown_day(*, profile_zone: str = "", order_zone: str = "", at: dt.datetime = EVENING) -> str:
    """Return the day of November, or of July, on which an e-mail says that the order was placed."""
    profile = dataclasses.replace(from_settings(), time_zone=profile_zone)
    context = {**SAMPLE, "ordered_at": at, "time_zone": order_zone}
    email = render_email(event_type="order.paid", locale="en-GB", context=context, profile=profile)
    line = next(line for line in email.body_text.splitlines() if line.startswith("Placed on"))
    assert line.removeprefix("Placed on: ") in email.body_html
    return line.removeprefix("Placed on: ").partition(NBSP)[0]


@pytest.mark.parametrize(
    ("profile_zone", "order_zone", "day"),
    [
        ("", "", "28"),
        ("America/Los_Angeles", "", "27"),
        ("Europe/Berlin", "", "28"),
        ("Europe/Berlin", "America/Los_Angeles", "27"),
        ("Europe/Berlin", "-08:00", "27"),
        ("America/Los_Angeles", "+00:00", "28"),
        ("America/Los_Angeles", "Mars/Base", "27"),  # one that this release does not know
        ("Mars/Base", "", "28"),
        ("Mars/Base", "Mars/Base", "28"),
    ],
)
def test_a_date_is_that_of_the_order_or_the_profile_or_utc(profile_zone, order_zone, day):
    assert shown_day(profile_zone=profile_zone, order_zone=order_zone) == day


def test_a_date_knows_summer_time():
    evening = dt.datetime(2026, 7, 27, 22, 30, tzinfo=dt.UTC)
    assert shown_day(profile_zone="Europe/London", at=evening) == "27"  # 23:30
    assert shown_day(profile_zone="Europe/Berlin", at=evening) == "28"
    assert shown_day(profile_zone="Europe/London", at=evening + dt.timedelta(hours=1)) == "28"


def test_every_date_of_an_email_is_of_the_time_zone():
    context = {**SAMPLE, "time_zone": "America/Los_Angeles"}
    context |= dict.fromkeys(("ordered_at", "changed_at", "shipped_at"), EVENING)
    for event_type in ("order.paid", "order.shipped", "order.cancelled", "order.part_refunded"):
        email = render_email(event_type=event_type, locale="en-GB", context=context)
        for part in (email.body_text, email.body_html):
            assert f"27{NBSP}November" in part and f"28{NBSP}November" not in part


NAMES = ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+8", "EST5EDT", "GB-Eire"]
OFFSETS = ["-08:00", "+00:00", "+05:45", "+14:00"]
NEITHER = [
    *("", "Europe", "Berlin", "europe/berlin", "localtime", "posix/Europe/Berlin", "../etc/passwd", "Z"),
    *(
        "Europe/",
        "/Europe/Berlin",
        "Europe/Berlin\n",
        "Europe/Ber\0lin",
        "-8:00",
        "-0800",
        "+15:00",
        "+01:60",
    ),
    *("Ｅurope/Berlin", "A" * 300, "zone.tab", "+٠٨:٠٠"),
]


@pytest.mark.parametrize("name", NAMES)
def test_it_knows_an_iana_name(name):
    assert is_zone_name(name) and find_zone(name) is not None


@pytest.mark.parametrize("offset", OFFSETS)
def test_it_knows_an_offset_which_is_no_name(offset):
    zone = find_zone(offset)
    assert zone is not None and not is_zone_name(offset)
    assert dt.datetime(2026, 1, 1, tzinfo=zone).isoformat().endswith(offset)


@pytest.mark.parametrize("text", NEITHER)
def test_any_other_text_is_neither(text):
    assert find_zone(text) is None and not is_zone_name(text)


class TestAProfile:
    DOCUMENT = {"from_email": "a@shop.test", "shop_name": "Shop", "postal_address": "1 Road"}

    def test_takes_an_iana_name_and_keeps_it(self, db):
        form = form_of({**self.DOCUMENT, "time_zone": "Europe/Berlin"}, instance=MailProfile())
        assert form.is_valid(), form.errors
        assert as_document(form.instance)["time_zone"] == "Europe/Berlin"

    def test_needs_none(self, db):
        form = form_of(self.DOCUMENT, instance=MailProfile())
        assert form.is_valid() and "time_zone" not in as_document(form.instance)

    @pytest.mark.parametrize("name", ["Berlin", "-08:00", "europe/berlin"])
    def test_refuses_what_is_no_iana_name(self, name, db):
        form = form_of({**self.DOCUMENT, "time_zone": name}, instance=MailProfile())
        assert form.errors == {
            "time_zone": ["This is not the IANA name of a time zone, such as Europe/Berlin."]
        }

    def test_shows_its_days_in_the_preview_of_the_form(self, admin_client):
        values = {**self.DOCUMENT, "preview_event": "order.paid", "default_locale": "en-GB"}
        url = "/admin/notifications/mailprofile/preview/"
        for name, day in {"": f"1{NBSP}January", "America/Los_Angeles": f"31{NBSP}December"}.items():
            page = admin_client.post(url, {**values, "time_zone": name}).content.decode()
            assert f">{day} 20" in page  # the sample is of midnight in UTC
