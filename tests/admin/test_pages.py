"""The admin of tokens, partitions, events and inbound dead letters."""

from __future__ import annotations

import html
import re

import pytest
from django.db.models.functions import Now
from django.test import Client

from retention.partitioned import partitioned_models
from tests.kit.acts import acts
from tests.kit.admin import (
    EVENTS,
    JOBS,
    LETTERS,
    LOG,
    MAILS,
    ORDERS,
    dead_event,
    dead_letter,
    every_page,
    listed,
    make_event,
    press,
)
from tests.kit.jobs import run_jobs
from tests.kit.months import fill, make_partition
from tests.kit.people import client_of, make_user, staff_client
from tests.kit.words import ApiToken, DomainEvent, EmailNotification, InboundDeadLetter, attached, new_id

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
TOKENS, PARTITIONS = "/admin/web/apitoken/", "/admin/retention/detachedpartition/"


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("/admin/", "Overview"),
        ("/admin/set-up/", "Set-up"),
        (TOKENS, "Set-up"),
        ("/admin/runtime/heartbeat/", "Set-up"),
        (PARTITIONS, "Partitions"),
    ],
)
def test_the_menu_marks_where_a_page_belongs(admin_client, path, title):
    menu = admin_client.get(path).context["menu"]
    assert [item["title"] for item in menu if item["here"]] == [title]


def test_an_empty_list_says_whether_filters_or_nothing_made_it_empty(admin_client):
    def empty(path: str) -> str:
        page: str = admin_client.get(path).content.decode()
        return page.partition('class="empty">')[2].partition("</div>")[0]

    assert empty("/admin/django_celery_beat/clockedschedule/") == "<p>Nothing here yet.</p>"
    whole, filtered = empty(EVENTS), empty(f"{EVENTS}?state=failing")
    assert "Nothing matches" not in whole and whole.removeprefix("<p>").removesuffix("</p>") not in filtered
    assert "Nothing matches" in filtered


@pytest.mark.parametrize("path", [MAILS, ORDERS, EVENTS, LETTERS, LOG])
def test_a_search_that_finds_nothing_says_so(admin_client, path):
    for text in ("R-404", "ann@example.com", str(new_id())):
        answer = admin_client.get(path, {"q": text})
        assert answer.status_code == 200 and b"Nothing matches" in answer.content
        assert admin_client.get(f"{path}csv/", {"q": text}).getvalue().count(b"\n") == 1


def test_a_list_has_one_name_in_its_tab_its_title_and_the_way_to_it(admin_client):
    for item in admin_client.get("/admin/").context["menu"][1:]:
        page = admin_client.get(item["url"]).content.decode()
        assert f"<title>{item['title']} · orderpost</title>" in page, item
        assert f"<h1>{item['title']}</h1>" in page, item
        assert f'<a href="/admin/">Overview</a> › {item["title"]}</div>' in page, item


def test_no_list_speaks_djangos_words(admin_client):
    for path in [*every_page(), TOKENS, "/admin/django_celery_beat/periodictask/"]:
        page = admin_client.get(path, follow=True).content.decode()
        for words in ("<h1>Select", "to view<", "to change<", "Api token", "Solar", "Add email", ">Home<"):
            assert words not in page, (path, words)


def test_the_header_leads_to_the_own_page_which_leads_to_the_password():
    user = make_user("ann")
    client = client_of(user)
    header = (
        client.get("/admin/").content.decode().partition('<div id="user-tools">')[2].partition("</div>")[0]
    )
    assert '<a href="/admin/account/">My account</a>' in header and "Log out" in header
    assert "password" not in header
    link = '<a href="/admin/password_change/">Change password</a>'
    assert link in client.get("/admin/account/").content.decode()
    user.set_unusable_password()
    user.save()
    assert link not in client_of(user).get("/admin/account/").content.decode()


@pytest.mark.parametrize("group", ["viewer", "support", "operator", "editor"])
def test_a_member_sees_the_tabs_that_open_and_set_up_last(group):
    client = client_of(make_user(group, group=group))
    menu = client.get("/admin/").context["menu"]
    assert {item["url"]: client.get(item["url"]).status_code for item in menu} == {
        item["url"]: 200 for item in menu
    }
    assert menu[-1]["title"] == "Set-up" and len(menu) > 8


def test_a_time_is_written_as_in_the_timeline(admin_client):
    every_page()
    for path in (MAILS, ORDERS, EVENTS, LETTERS, JOBS, LOG, TOKENS, "/admin/runtime/heartbeat/"):
        page = admin_client.get(path).content.decode()
        assert not re.search(r"\b(a\.m\.|p\.m\.|noon|midnight|ago<)", page.partition("<main")[2]), path


class TestTheFormOfAnInboundDeadLetter:
    def test_says_the_next_step_and_replays_or_discards_it(self, admin_client):
        error = "its producer 'shop-c' is not in ORDER_SOURCES: add it for all processes"
        for verb, state in (("replay", "replay_requested_at"), ("discard", "discarded_at")):
            letter = dead_letter(error=error)
            page = f"{LETTERS}{letter.id}/change/"
            shown = html.unescape(admin_client.get(page).content.decode())
            assert error in shown and "Remove the cause, then replay it." in shown
            answer = admin_client.post(f"{LETTERS}{letter.id}/resolve/", {verb: ""})
            assert answer.url == page
            letter.refresh_from_db()
            assert getattr(letter, state)
        assert acts().count() == 2

    def test_has_only_the_buttons_that_would_work(self, admin_client):
        for fields, buttons in (
            ({}, {"replay", "discard"}),
            ({"is_exact": False}, {"discard"}),
            ({"replay_requested_at": Now()}, {"discard"}),
            ({"replayed_at": Now()}, set()),
        ):
            page = admin_client.get(f"{LETTERS}{dead_letter(**fields).id}/change/").content.decode()
            assert {name for name in ("replay", "discard") if f'name="{name}"' in page} == buttons

    def test_asks_for_the_permission(self):
        letter = dead_letter()
        viewer = staff_client("view_inbounddeadletter")
        assert b'name="replay"' not in viewer.get(f"{LETTERS}{letter.id}/change/").content
        assert viewer.post(f"{LETTERS}{letter.id}/resolve/", {"replay": ""}).status_code == 403


class TestTokens:
    def test_one_is_shown_once_and_works_until_it_is_revoked(self, admin_client):
        values = {"name": "shop", "scopes": ["orders:read"], "expires_at_0": "", "expires_at_1": ""}
        page = admin_client.post(f"{TOKENS}add/", values, follow=True)
        token = ApiToken.objects.get()
        (message,) = (str(message) for message in page.context["messages"] if "shown only" in str(message))
        secret = re.sub("<.*?>", "", message).split()[-1]
        assert ApiToken.digest_of(secret) == token.digest
        headers = {"Authorization": f"Bearer {secret}"}
        assert Client().get("/api/v1/orders", headers=headers).status_code == 200
        press(admin_client, TOKENS, "revoke", token.id)
        assert Client().get("/api/v1/orders", headers=headers).status_code == 401

    def test_one_can_be_bound_to_a_source_and_to_no_other(self, admin_client, settings):
        settings.ORDER_SOURCES = ["shop-a"]
        values = {"name": "shop", "scopes": ["events:write"], "source": "shop-a"}
        admin_client.post(f"{TOKENS}add/", values | {"source": "shop-b"})
        assert not ApiToken.objects.exists()
        admin_client.post(f"{TOKENS}add/", values)
        assert ApiToken.objects.get().source == "shop-a"
        assert "shop-a" in admin_client.get(TOKENS).content.decode()


class TestPartitions:
    def test_are_all_listed(self, admin_client):
        page = admin_client.get(PARTITIONS).content.decode()
        names = [partition.name for model in partitioned_models() for partition in attached(model=model)]
        assert [name for name in names if name not in page] == []
        assert "past its hot days" not in page

    def test_an_old_one_with_dead_letters_is_shown_as_held(self, admin_client):
        fill(make_partition(EmailNotification, back=4), 2, status="dead_lettered")
        page = admin_client.get(PARTITIONS).content.decode()
        assert "is past its hot days but has 2 unfinished rows" in page


class TestEvents:
    def test_are_found_by_their_state(self, admin_client):
        dead, failing, sent = dead_event(), make_event(retry_count=1), make_event(published_at=Now())
        make_event()
        for state, wanted in (("dead-lettered", dead), ("failing", failing), ("published", sent)):
            assert listed(admin_client, EVENTS, state=state) == [wanted.id]

    def test_dead_ones_are_republished_or_discarded_and_others_left_alone(self, admin_client):
        rows = [dead_event(), make_event(retry_count=1), make_event(), make_event(published_at=Now())]
        ids = [row.id for row in rows]
        assert b"Republished: 2. Left alone: 2." in press(admin_client, EVENTS, "republish", *ids).content
        rows[0].refresh_from_db()
        assert (rows[0].dead_lettered_at, rows[0].retry_count) == (None, 0)
        DomainEvent.objects.filter(id=ids[0]).update(dead_lettered_at=Now())
        assert b"Discarded: 1. Left alone: 3." in press(admin_client, EVENTS, "discard", *ids).content
        assert acts().count() == 3

    def test_all_dead_ones_are_republished_by_a_job(self, admin_client):
        rows = [dead_event() for _ in range(3)]
        page = f"{EVENTS}?state=dead-lettered&age=24h"
        done = press(admin_client, page, "republish", rows[0].id, select_across="1")
        assert done.redirect_chain[-1][0].startswith(JOBS)
        assert DomainEvent.objects.dead().count() == 3
        run_jobs()
        assert not DomainEvent.objects.dead().exists()

    def test_are_not_discarded_without_the_permission(self):
        event = dead_event()
        press(staff_client("view_domainevent"), EVENTS, "discard", event.id)
        event.refresh_from_db()
        assert event.discarded_at is None


class TestInboundDeadLetters:
    def test_are_replayed_or_discarded_and_a_second_time_changes_nothing(self, admin_client):
        first, second = dead_letter(), dead_letter()
        for _ in range(2):
            press(admin_client, LETTERS, "replay", first.id)
        press(admin_client, LETTERS, "discard", second.id)
        first.refresh_from_db()
        second.refresh_from_db()
        assert first.replay_requested_at and second.discarded_at
        assert acts().count() == 2

    def test_are_all_replayed_by_a_job(self, admin_client):
        rows = [dead_letter() for _ in range(3)]
        done = press(admin_client, LETTERS, "replay", rows[0].id, select_across="1")
        assert done.redirect_chain[-1][0].startswith(JOBS)
        run_jobs()
        assert InboundDeadLetter.objects.replay_requested().count() == 3

    def test_are_shown_but_not_replayed_if_they_are_not_exactly_what_came(self, admin_client):
        letter, other = dead_letter(is_exact=False), dead_letter()
        assert "dead, not exact" in admin_client.get(LETTERS).content.decode()
        assert "have its sender" in admin_client.get(f"{LETTERS}{letter.id}/change/").content.decode()
        press(admin_client, LETTERS, "replay", letter.id)
        press(admin_client, LETTERS, "replay", letter.id, select_across="1")
        run_jobs()
        assert list(InboundDeadLetter.objects.replay_requested()) == [other]
        press(admin_client, LETTERS, "discard", letter.id)
        letter.refresh_from_db()
        assert letter.discarded_at

    def test_are_viewed_but_not_replayed_without_the_permission(self):
        letter = dead_letter()
        viewer = staff_client("view_inbounddeadletter")
        assert viewer.get(LETTERS).status_code == 200
        assert viewer.get(f"{LETTERS}{letter.id}/change/").status_code == 200
        press(viewer, LETTERS, "replay", letter.id)
        letter.refresh_from_db()
        assert letter.replay_requested_at is None
