"""The admin of tokens, partitions, events and inbound dead letters."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from django.test import Client

from outbox.retention.partitions.partitions import partitioned_models
from tests.kit.jobs import run_jobs
from tests.kit.months import fill, make_partition
from tests.kit.people import staff_client
from tests.kit.words import ApiToken, EmailNotification, InboundDeadLetter, OutboxEvent, attached, new_id

pytestmark = pytest.mark.django_db


def test_a_token_is_shown_once_and_works(admin_client):
    page = admin_client.post(
        "/admin/outbox/apitoken/add/",
        {"name": "shop", "scopes": ["orders:read"], "expires_at_0": "", "expires_at_1": ""},
        follow=True,
    )
    token = ApiToken.objects.get()
    (message,) = (str(one) for one in page.context["messages"] if "shown only" in str(one))
    secret = str(message).split()[-1]
    assert ApiToken.digest_of(secret) == token.digest
    assert Client().get("/api/v1/orders", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
    admin_client.post(
        "/admin/outbox/apitoken/", {"action": "revoke", "_selected_action": [str(token.id)]}, follow=True
    )
    assert Client().get("/api/v1/orders", headers={"Authorization": f"Bearer {secret}"}).status_code == 401


def test_a_token_can_be_bound_to_a_source_and_to_no_other(admin_client, settings):
    settings.ORDER_SOURCES = ["shop-a"]
    values = {"name": "shop", "scopes": ["events:write"], "source": "shop-a"}
    assert "shop-a" in admin_client.get("/admin/outbox/apitoken/add/").content.decode()
    admin_client.post("/admin/outbox/apitoken/add/", values | {"source": "shop-b"})
    assert not ApiToken.objects.exists()
    admin_client.post("/admin/outbox/apitoken/add/", values)
    assert ApiToken.objects.get().source == "shop-a"
    assert "shop-a" in admin_client.get("/admin/outbox/apitoken/").content.decode()


def test_the_partitions_page_lists_them_and_says_what_holds_one(admin_client):
    page = admin_client.get("/admin/outbox/detachedpartition/").content.decode()
    for model in partitioned_models():
        for partition in attached(model=model):
            assert partition.name in page
    assert "past its hot days" not in page
    assert staff_client("view_order").get("/admin/outbox/detachedpartition/").status_code == 403


def test_an_old_partition_with_dead_letters_is_shown_as_held(admin_client):
    fill(make_partition(EmailNotification, back=4), 2, status="dead_lettered")
    page = admin_client.get("/admin/outbox/detachedpartition/").content.decode()
    assert "is past its hot days but has 2 unfinished rows" in page
    assert "Resend them or give them up" in page


class TestEvents:
    def event(self, **fields):
        values = {"aggregate_type": "t", "aggregate_id": new_id(), "event_type": "t.v1", "sequence": 1}
        return OutboxEvent.objects.create(**values | {"payload": {}, "shard": 1} | fields)

    def test_dead_ones_are_republished_or_discarded_and_others_left_alone(self, admin_client):
        page = "/admin/outbox/outboxevent/"
        dead, failing, fine, sent = (
            self.event(dead_lettered_at=Now(), retry_count=4, last_error="no"),
            self.event(retry_count=1),
            self.event(),
            self.event(published_at=Now()),
        )
        for state, wanted in (("dead-lettered", dead), ("failing", failing), ("published", sent)):
            found = admin_client.get(page, {"state": state}).context["cl"].result_list
            assert [row.id for row in found] == [wanted.id]
        ids = [str(row.id) for row in (dead, failing, fine, sent)]
        done = admin_client.post(page, {"action": "republish", "_selected_action": ids}, follow=True)
        assert b"Republished: 2. Left alone: 2." in done.content
        dead.refresh_from_db()
        assert (dead.dead_lettered_at, dead.retry_count) == (None, 0)
        OutboxEvent.objects.filter(id=dead.id).update(dead_lettered_at=Now())
        done = admin_client.post(page, {"action": "discard", "_selected_action": ids}, follow=True)
        assert b"Discarded: 1. Left alone: 3." in done.content
        assert LogEntry.objects.count() == 3

    def test_all_dead_ones_are_republished_by_a_job(self, admin_client):
        page = "/admin/outbox/outboxevent/"
        rows = [self.event(dead_lettered_at=Now(), retry_count=4) for _ in range(3)]
        data = {"action": "republish", "_selected_action": [str(rows[0].id)], "select_across": "1"}
        done = admin_client.post(f"{page}?state=dead-lettered&age=24h", data, follow=True)
        assert done.redirect_chain[-1][0].startswith("/admin/outbox/bulkjob/")
        assert OutboxEvent.objects.dead().count() == 3
        run_jobs()
        assert not OutboxEvent.objects.dead().exists()

    def test_a_filtered_list_is_downloaded_as_csv(self, admin_client):
        dead = self.event(dead_lettered_at=Now(), retry_count=4, last_error="=1+1")
        self.event()
        answer = admin_client.get("/admin/outbox/outboxevent/csv/", {"state": "dead-lettered"})
        lines = b"".join(answer.streaming_content).decode("utf-8-sig").splitlines()
        assert len(lines) == 2 and str(dead.id) in lines[1] and "'=1+1" in lines[1]
        assert staff_client("view_order").get("/admin/outbox/outboxevent/csv/").status_code == 403

    def test_all_inbound_dead_letters_are_replayed_by_a_job_and_downloaded(self, admin_client):
        page = "/admin/outbox/inbounddeadletter/"
        rows = [
            InboundDeadLetter.objects.create(
                topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="=e"
            )
            for _ in range(3)
        ]
        answer = admin_client.get(f"{page}csv/")
        lines = b"".join(answer.streaming_content).decode("utf-8-sig").splitlines()
        assert len(lines) == 4 and "'=e" in lines[1]
        data = {"action": "replay", "_selected_action": [str(rows[0].id)], "select_across": "1"}
        done = admin_client.post(page, data, follow=True)
        assert done.redirect_chain[-1][0].startswith("/admin/outbox/bulkjob/")
        run_jobs()
        assert InboundDeadLetter.objects.replay_requested().count() == 3

    def test_events_that_came_in_dead_are_replayed_or_discarded(self, admin_client):
        page = "/admin/outbox/inbounddeadletter/"
        rows = [
            InboundDeadLetter.objects.create(
                topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="e"
            )
            for _ in range(2)
        ]
        for _ in range(2):  # the second time changes nothing
            admin_client.post(page, {"action": "replay", "_selected_action": [str(rows[0].id)]})
        admin_client.post(page, {"action": "discard", "_selected_action": [str(rows[1].id)]})
        for row in rows:
            row.refresh_from_db()
        assert rows[0].replay_requested_at and rows[1].discarded_at
        assert LogEntry.objects.count() == 2
        assert admin_client.get(page).status_code == 200

    def test_who_may_view_them_may_not_replay_them(self):
        letter = InboundDeadLetter.objects.create(
            topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="e"
        )
        page = "/admin/outbox/inbounddeadletter/"
        viewer = staff_client("view_inbounddeadletter")
        assert viewer.get(page).status_code == 200
        assert viewer.get(f"{page}{letter.id}/change/").status_code == 200
        viewer.post(page, {"action": "replay", "_selected_action": [str(letter.id)]})
        letter.refresh_from_db()
        assert letter.replay_requested_at is None
        assert staff_client(name="nobody").get(page).status_code == 403

    def test_each_needs_its_own_permission(self):
        event = self.event(dead_lettered_at=Now())
        client = staff_client("view_outboxevent")
        client.post("/admin/outbox/outboxevent/", {"action": "discard", "_selected_action": [str(event.id)]})
        event.refresh_from_db()
        assert event.discarded_at is None
