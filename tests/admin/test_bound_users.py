"""A user who is bound to some shops: jobs, exports, suppressions, and what a page says of a missing right."""

from __future__ import annotations

import datetime as dt
import gzip
import html
import json
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.checks import Tags, run_checks
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import Client
from environs import ValidationError

from config.validation import names_of_systems
from notifications.models import MailProfile
from notifications.suppressions import ELSEWHERE, suppressed_among
from orders import models
from orders.models import Shipment
from orders.privacy import jobs
from runtime.audit import Actor
from runtime.binding import UNBOUND, Binding
from runtime.database import beginnings, parts
from runtime.models import AuditRow, UserBinding
from runtime.models.bindings import binding_of
from shop_connections.models import ShopConnection
from shop_connections.services import ShopRefusal, check_source
from tests.kit.acts import record_now
from tests.kit.admin import JOBS, LETTERS, LOG, MAILS, ORDERS, dead_letter, press, statements_of
from tests.kit.api import Api, make_token
from tests.kit.jobs import job_after, small_batches, started
from tests.kit.mails import make_mail, statuses
from tests.kit.orders import make_order
from tests.kit.people import client_of, make_user, staff_client
from tests.kit.profiles import save_profile
from tests.kit.texts import READY, publish_texts
from tests.kit.words import EmailNotification, Order, Suppression, SuppressionReason, suppress

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
SEARCH, PROFILES, TEXTS = (
    "/admin/search/",
    "/admin/notifications/mailprofile/",
    "/admin/notifications/emailtext/",
)
CAUSES, SUPPRESSIONS = f"{MAILS}causes/", "/admin/notifications/suppression/"
A, B = ["shop-a"], ["shop-b"]


def text_of(answer: Any) -> str:
    return html.unescape(answer.content.decode())


def two_shops(shops: Sequence[str] = ("shop-a", "shop-b"), **fields: Any) -> dict[str, EmailNotification]:
    """Write a dead letter of an order of each shop, to one customer."""
    mails = {}
    address = fields.get("recipient_email", "ann@example.com")
    for source in shops:
        order = make_order(source=source, email=address, reference=f"R-{source}")
        values = {"order_id": order.id, "source": source, "status": "dead_lettered"}
        mails[source] = make_mail(**values | {"recipient_email": address} | fields)
    return mails


class TestABinding:
    def test_is_stored_in_words(self):
        assert Binding.of_words(["own", "tea"]).sources == {"", "tea"}
        assert Binding.of_words(["*", "tea"]) == Binding.of_words(None) == UNBOUND
        for words in ([], ["own"], ["own", "tea"], ["*"]):
            assert Binding.of_words(words).words == words

    def test_covers_what_is_not_wider(self):
        nothing, tea, both = Binding(), Binding(frozenset({"tea"})), Binding(frozenset({"", "tea"}))
        ordered = [nothing, tea, both, UNBOUND]
        for place, binding in enumerate(ordered):
            assert [binding.covers(other) for other in ordered] == [n <= place for n in range(4)]

    def test_of_a_new_account_is_none_and_the_first_page_says_so(self):
        user = User.objects.create_user("new", is_staff=True)
        assert binding_of(user) == Binding()
        assert "bound to no shop yet" in text_of(client_of(user).get("/admin/"))

    def test_is_set_by_a_superuser_on_the_page_of_the_user(self, admin_client, settings):
        settings.ORDER_SOURCES = ["shop-a", "shop-b"]
        user = make_user("sue", shops=[])
        page = f"/admin/auth/user/{user.id}/change/"
        data = {"username": "sue", "is_active": "on", "is_staff": "on", "shops": ["shop-a", "own"]}
        data |= {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
        assert admin_client.post(page, data).status_code == 302
        assert UserBinding.objects.get(user=user).sources == ["own", "shop-a"]
        admin_client.post(page, data | {"shops": ["*", "own"]})
        assert UserBinding.objects.get(user=user).sources == ["*"]
        other = staff_client("view_user", "change_user", name="other")
        assert "id_shops" not in text_of(other.get(page))
        other.post(page, data | {"shops": ["own"]})
        assert UserBinding.objects.get(user=user).sources == ["*"]


class TestAJob:
    def test_visits_the_shops_of_who_started_it_alone(self):
        two_shops()
        with small_batches(rows=10):
            job = started(user=self.user("sue", A))
            assert (job.total, job.sources) == (1, A)
            assert job_after(job).done_count == 1
        assert statuses() == {"dead_lettered": 1, "pending": 1}
        assert EmailNotification.objects.get(status="pending").source == "shop-a"

    def test_stops_if_its_user_is_bound_to_fewer(self):
        two_shops()
        user = self.user("sue", ["*"])
        with small_batches(rows=10):
            job = started(user=user)
            UserBinding.objects.update(sources=A)
            ended = job_after(job)
        assert ended.state == "stopped" and "is bound to shop-a now, and the job to all shops" in ended.error
        assert client_of(user).get(f"{JOBS}{job.id}/change/").status_code == 404

    def user(self, name: str, shops: list[str]) -> User:
        user = make_user(name, group="support", shops=shops)
        user.groups.add(*user.groups.all())
        return user


@pytest.mark.django_db(databases=["default", "direct"], transaction=True)
def test_an_export_has_these_shops_alone_and_says_so():
    two_shops()
    support = make_user("sue", group="support", shops=A)
    page = client_of(support).post(
        ORDERS, {"action": "export_person", "_selected_action": [str(Order.objects.get(source="shop-a").id)]}
    )
    assert "The file has only what belongs to shop-a, and says so." in text_of(page)
    listed = text_of(client_of(support).get(ORDERS))
    assert "“Can erase a person's data” reaches over all shops, and you are bound to shop-a." in listed
    with small_batches(rows=10):
        job = job_after(jobs.start_export(email="ann@example.com", by=Actor("ann"), user=support))
    document = json.loads(gzip.decompress(job.result or b""))
    assert document["only_of_shops"] == A
    assert [order["source"] for order in document["orders"]] == A
    assert [mail["source"] for mail in document["email_notifications"]] == A
    assert b"Started an erasure" not in press(client_of(support), ORDERS, "erase_person").content


class TestASuppression:
    def test_because_of_another_shop_is_said_to_exist_and_no_more(self):
        mails = two_shops(status="suppressed")
        suppress(
            [SuppressionReason("ann@example.com", "complaint", "postmark", mails["shop-b"].id, "shop-b")]
        )
        row = Suppression.objects.get()
        reasons = suppressed_among(list(mails.values()))
        assert reasons == {mails["shop-a"].id: ELSEWHERE, mails["shop-b"].id: "its owner complained"}
        here, there = (self.client(shops) for shops in (A, B))
        page = text_of(here.get(SUPPRESSIONS, {"q": "ann@example.com"}))
        assert "is suppressed, but not because of an e-mail of shop-a" in page and "0 suppressions" in page
        since = f"{row.created_at:%Y-%m-%d %H:%M:%S}"
        for secret in ("its owner complained", str(row.id), row.address_hash[:12], since):
            assert secret not in page
        assert "its owner complained" not in text_of(here.get(f"{MAILS}{mails['shop-a'].id}/change/"))
        assert row.address_hash[:12] in text_of(there.get(SUPPRESSIONS))

    def test_stays_its_shops_when_the_email_that_caused_it_is_archived(self):
        mails = two_shops(status="suppressed")
        cause = make_mail(order_id=mails["shop-a"].order_id, source="shop-a", status="pending")
        suppress([SuppressionReason("ann@example.com", "hard_bounce", "smtp", cause.id, "shop-a")])
        EmailNotification.objects.filter(id=cause.id).delete()
        here, there = (self.client(shops) for shops in (A, B))
        reasons = suppressed_among(list(mails.values()))
        assert reasons == {mails["shop-a"].id: "the address bounced", mails["shop-b"].id: ELSEWHERE}
        short = Suppression.objects.get().address_hash[:12]
        assert short in text_of(here.get(SUPPRESSIONS)) and short not in text_of(there.get(SUPPRESSIONS))
        page = text_of(here.get(f"{ORDERS}{mails['shop-a'].order_id}/change/"))
        assert "because the address bounced, as smtp reported" in page

    def test_is_neither_made_nor_lifted_by_a_bound_user_whom_the_page_sends_to_others(self):
        mail = two_shops()["shop-a"]
        suppress([SuppressionReason("ann@example.com", "hard_bounce", "postmark", mail.id)])
        client = client_of(make_user("sue", group="support", shops=A))
        page = text_of(client.get(SUPPRESSIONS))
        assert "“Can lift suppressions” reaches over all shops, and you are bound to shop-a." in page
        assert "Ask somebody of the group operator or support who is bound to all shops" in page
        assert client.get(f"{SUPPRESSIONS}add/").status_code == 403
        lift = {"action": "lift", "_selected_action": [str(Suppression.objects.get().id)]}
        client.post(SUPPRESSIONS, lift | {"confirmed": "yes", "reason": "x"})
        assert Suppression.objects.exists()

    def client(self, shops: list[str]) -> Client:
        rights = ("view_suppression", "view_emailnotification", "view_order", "resend_emailnotification")
        return staff_client(*rights, name=shops[0], shops=shops)


class TestASearch:
    """A user of shop-b searches next to the rows of shop-a, which are more and newer."""

    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch):
        for module in (beginnings, parts, models):
            monkeypatch.setattr(module, "LIMIT", 3)
        monkeypatch.setattr(beginnings, "READ_FOR_SHOPS", 6)

    def client(self) -> Client:
        return staff_client("view_order", "view_emailnotification", shops=B)

    @pytest.mark.parametrize("path", [SEARCH, ORDERS, MAILS])
    def test_that_stopped_before_its_rows_says_so(self, path):
        for _ in range(7):
            two_shops(shops=A, recipient_email="zoe@a.example")
        client = self.client()
        assert "Too many" in text_of(client.get(path, {"q": "zoe"}))
        assert "Too many" not in text_of(client.get(path, {"q": "zora"}))
        # Behind those that begin so, there are enough rows of others.
        two_shops(shops=A, recipient_email="zo@a.example")
        assert "Too many" not in text_of(client.get(path, {"q": "zo"}))

    @pytest.mark.parametrize("term", ["zoe", "b.example", "417-0", "RACK-9"])
    def test_finds_its_rows_behind_those_of_others_and_does_not_tell_how_many_these_are(self, term):
        order = None
        for shop in ("shop-b", *["shop-a"] * 5):
            values = {
                "source": shop,
                "name": "Zoe",
                "email": "z@b.example",
                "reference": f"X417-0{uuid.uuid4()}",
            }
            made = make_order(**values)
            Shipment.objects.create(
                order=made, tracking_number=f"TRACK-9{shop}", sequence=1, shipped_at=Now()
            )
            order = order or made
        answer = self.client().get(SEARCH, {"q": term})
        assert order is not None and answer.status_code == 302, text_of(answer)
        assert answer.headers["Location"] == f"{ORDERS}{order.id}/change/"


class TestAProfile:
    """A user of shop-b, whose profile was that of shop-a before."""

    @pytest.fixture(autouse=True)
    def _profiles(self, settings):
        settings.ORDER_SOURCES = ["shop-a", "shop-b"]
        self.other, self.own = (save_profile(source=source) for source in ("shop-a", "shop-b"))
        names = ("view_mailprofile", "change_mailprofile", "add_mailprofile", "view_emailtext", "edit_texts")
        self.client = staff_client(*names, "view_logentry", shops=B)

    def values(self, source: str) -> dict[str, str]:
        sender = {"from_email": "x@example.com", "postal_address": "1 Road"}
        return {"source": source, "shop_name": "x", "preview_event": "order.paid", **sender}

    def test_shows_no_texts_of_another_shop_and_not_that_it_has_a_profile(self):
        publish_texts({READY: "zqxa"}, source="shop-a")
        publish_texts({READY: "zqxb"}, source="shop-b")
        for path in (f"{PROFILES}preview/", f"{PROFILES}{self.own.id}/preview/"):
            page = text_of(self.client.post(path, self.values("shop-a")))
            assert "You are bound to shop-b." in page
            assert "zqxa" not in page and "already exists" not in page
        assert "zqxb" in text_of(self.client.post(path, self.values("shop-b")))

    def test_that_was_another_shops_does_not_show_when_and_cannot_go_back(self):
        boss = staff_client("view_mailprofile", "change_mailprofile", name="boss")
        self.other.delete()
        url = f"{PROFILES}{self.own.id}"
        boss.post(f"{url}/change/", self.values("shop-a") | {"shop_name": "zqxa"})
        boss.post(f"{url}/change/", self.values("shop-b"))
        assert "zqxa" in text_of(boss.get(f"{url}/history/"))
        for page in (f"{url}/history/", "/admin/runtime/auditrow/", "/admin/runtime/auditrow/csv/"):
            text = b"".join(self.client.get(page)).decode()
            assert "shop-a" not in text and "zqxa" not in text, page
        rows = AuditRow.objects.filter(subject_id=str(self.own.id)).order_by("id")
        for row in rows:
            self.client.post(f"{url}/history/", {"row": str(row.id)})
        self.own.refresh_from_db()
        assert self.own.source == "shop-b"

    def test_of_a_shop_that_left_the_settings_names_no_other_shop(self, settings):
        settings.ORDER_SOURCES = ["shop-a"]
        self.own.delete()
        page = text_of(self.client.post(f"{PROFILES}add/", self.values("shop-b")))
        assert "not one of ORDER_SOURCES" in page and "shop-a" not in page

    def test_of_own_orders_is_not_shown_with_the_texts_for_every_shop(self):
        save_profile(source="", shop_name="zqxown", postal_address="zqxown", logo_url="https://zqxown.test/x")
        for path in (TEXTS, f"{TEXTS}edit/order.paid/en/"):
            answer = self.client.get(path)
            assert "zqxown" not in text_of(answer) + str(answer.headers)


class TestAnOrdersPage:
    def test_shows_neither_emails_nor_acts_of_another_shop(self):
        order = make_order(source="shop-b")
        own = make_mail(order_id=order.id, source="shop-b", subject="own")
        values = {"order_id": order.id, "source": "shop-a", "subject": "zqxa", "event_type": "order.paid"}
        make_mail(**values, recipient_email="zqxa@example.com", resend_of=own.id)
        for source in ("shop-a", None):
            act = AuditRow(
                kind="export", act="zqxa", source=source, order_id=order.id, subject_id=str(own.id)
            )
            record_now(act)
        record_now(AuditRow(kind="resend", act="zqxb", source="shop-b", order_id=order.id))
        client = staff_client("view_order", "view_emailnotification", shops=B)
        for path in (f"{ORDERS}{order.id}/change/", f"{MAILS}{own.id}/change/"):
            for part in ("", "?part=1"):
                page = text_of(client.get(path + part))
                assert "zqxa" not in page, path + part
        assert "zqxb" in text_of(client.get(f"{ORDERS}{order.id}/change/"))
        answer = Api(make_token(source="shop-b")).get(f"/api/v1/orders/{order.id}/timeline")
        assert "zqxb" in text_of(answer) and "zqxa" not in text_of(answer)

    def test_reads_the_suppression_of_an_address_once(self):
        client = staff_client("view_order", "view_emailnotification", "resend_emailnotification", shops=B)
        counts = []
        for source, others in (("shop-b", 0), ("shop-b", 4)):
            order = make_order(source=source)
            address = f"ann{others}@example.com"
            for _ in range(others + 1):
                mail = make_mail(
                    order_id=order.id, source=source, status="suppressed", recipient_email=address
                )
            suppress([SuppressionReason(address, "hard_bounce", "postmark", mail.id, source)])
            page = f"{ORDERS}{order.id}/change/"
            assert text_of(client.get(page)).count("as postmark reported") == others + 1
            counts.append(len(statements_of(client, page)))
        assert counts[0] == counts[1]


class TestTheAudit:
    def test_has_the_acts_of_the_shops_and_the_own_ones_of_no_shop(self):
        user = make_user("sue", group="support", shops=A)
        sue, others = Actor("sue"), [Actor("bob"), Actor("sue (command)"), Actor("sue (API token 1)")]
        for name, source, by in (
            ("theirs", "shop-a", others[0]),
            ("own", None, sue),
            ("zqxa", "shop-b", sue),  # of a shop to which she was bound before
            *(("zqxb", None, other) for other in others),
        ):
            record_now(AuditRow(kind="export", act=name, source=source), by=by)
        record_now(AuditRow(kind="export", act="zqxc"), by=sue)
        earlier = AuditRow.objects.filter(act="zqxc")
        earlier.update(at=user.date_joined - dt.timedelta(days=1))  # of another user with this name
        client = client_of(user)
        rows = client.get(LOG).context["cl"].result_list
        assert [row.act for row in rows if row.kind == "export"] == ["own", "theirs"]
        for path in (f"{LOG}csv/", f"{LOG}?q=sue", f"{LOG}?kind=export"):
            text = b"".join(client.get(path)).decode()
            assert "own" in text and "zqx" not in text, path
        assert client.get(f"{LOG}{earlier.get().id}/change/").status_code == 404

    def test_has_what_a_bound_user_did_to_dead_letters_and_exported(self):
        order = make_order(source="shop-a", email="ann@example.com")
        letters = [dead_letter(order_id=order.id) for _ in range(2)]
        user = make_user("sue", group="operator", shops=A)
        client = client_of(user)
        client.post(f"{LETTERS}{letters[0].id}/resolve/", {"replay": "yes"})
        press(client, LETTERS, "discard", letters[1].id)
        jobs.start_export(email="ann@example.com", by=Actor("sue"), user=user)
        page = text_of(client.get(LOG))
        for act in ("Replayed.", "Discarded.", "Started an export of a customer's data"):
            assert act in page, act


class TestAMissingRight:
    def test_is_named_with_who_has_it(self):
        answer = client_of(make_user("sue", group="support")).get("/admin/runtime/pause/")
        said = "You need the right “Can view pause”. The groups editor, operator and viewer have it."
        assert answer.status_code == 403 and said in text_of(answer)
        mail = make_mail(status="dead_lettered")
        viewer = client_of(make_user("vic", group="viewer"))
        answer = viewer.post(f"{MAILS}{mail.id}/act/", {"action": "resend"})
        assert "“Can resend e-mails”. The groups operator and support have it." in text_of(answer)

    def test_to_resend_what_a_resend_cannot_help_is_the_operators(self):
        gone = {"provider": "smtp", "last_error": "550 5.1.1 no such user"}
        make_mail(status="dead_lettered", **gone)
        make_mail(status="dead_lettered", provider="smtp", last_error="451 try later")
        support, operator = (client_of(make_user(name, group=name)) for name in ("support", "operator"))
        page = text_of(support.get(CAUSES))
        assert page.count('value="resend"') == 1 and "To resend all of them: You need the right" in page
        assert text_of(operator.get(CAUSES)).count('value="resend"') == 2
        groups = support.get(CAUSES).context["groups"]
        (hopeless,) = (group.cause for group in groups if not group.resend_helps)
        post = {"action": "resend", "cause": hopeless}
        bulk = f"{MAILS}bulk/"
        refused = support.post(bulk, post)
        assert refused.status_code == 403 and "A resend cannot help" in text_of(refused)
        assert operator.post(bulk, post).status_code == 200

    def test_to_resend_it_needs_the_right_however_the_emails_were_chosen(self):
        gone = [
            make_mail(status="dead_lettered", provider="smtp", last_error="550 5.1.1 no such user")
            for _ in range(2)
        ]
        later = make_mail(status="dead_lettered", provider="smtp", last_error="451 try later")
        support, operator = (client_of(make_user(name, group=name)) for name in ("support", "operator"))

        def ids(*mails: EmailNotification) -> dict[str, str]:
            return {"ids": ",".join(str(mail.id) for mail in mails)}

        for chosen, is_refused in (
            ({"status": "dead_lettered"}, True),
            ({"status": "dead_lettered", "provider": "smtp"}, True),
            (ids(*gone), True),
            (ids(later, gone[0]), True),
            (ids(gone[0]), False),  # its page has the button, too
            (ids(later), False),
            ({"failing": "hour"}, False),
        ):
            post = {"action": "resend", "confirmed": "yes", **chosen}
            refused = support.post(f"{MAILS}bulk/", post)
            assert (refused.status_code == 403) is is_refused, chosen
            if is_refused:
                assert "A resend cannot help" in text_of(refused)
                del post["confirmed"]
                assert operator.post(f"{MAILS}bulk/", post).status_code == 200


def test_support_sees_causes_stuck_orders_and_bounces_and_no_processes():
    make_mail(status="dead_lettered", provider="smtp", last_error="451 try later")
    make_order(unexpected_payment_at=Now(), id=uuid.uuid4())
    support, operator = (client_of(make_user(name, group=name)) for name in ("support", "operator"))
    page, other = (text_of(client.get("/admin/")) for client in (support, operator))
    for part in ("Dead letters by cause", "stuck orders", "Bounced"):
        assert part in page and part in other
    for part in (">Processes<", "The poll of the outbox", "Unfinished rows in partitions"):
        assert part not in page and part in other
    menu = [item["title"] for item in support.get("/admin/").context["menu"]]
    assert not {"Pauses", "Partitions", "Events", "Inbound"} & set(menu)
    assert {"Orders", "E-mails", "Causes", "Suppressions"} <= set(menu)


class TestAReservedName:
    @pytest.mark.parametrize("name", ["own", "*"])
    def test_is_refused_for_each_kind_of_shop(self, name, admin_client):
        with pytest.raises(ValidationError, match="No shop can be named"):
            names_of_systems(["shop-a", name])
        with pytest.raises(ShopRefusal):
            check_source(name)
        with pytest.raises(CommandError, match="No shop can be named"):
            call_command("tokens", "create", "x", "--scope", "orders:read", "--source", name)
        page = admin_client.post("/admin/notifications/mailprofile/add/", {"source": name})
        assert "No shop can be named" in text_of(page)

    def test_that_a_row_has_stops_migrate(self):
        assert run_checks(tags=[Tags.database], databases=["default"]) == []
        ShopConnection.objects.create(source="own", address="https://x.example.com")
        MailProfile.objects.create(source="*", from_email="x@example.com", shop_name="x", postal_address="x")
        messages = run_checks(tags=[Tags.database], databases=["default"])
        assert sorted(error.msg.split(",")[0] for error in messages) == [
            "A connection is named own",
            "A mail profile is named *",
        ]


def test_the_texts_for_every_shop_can_be_read_and_not_changed():
    publish_texts(source="")
    editor = client_of(make_user("eve", group="editor", shops=A))
    page = "/admin/notifications/emailtext/edit/order.paid/en/"
    assert 'value="publish"' not in text_of(editor.get(page))
    refused = editor.post(page, {"act": "withdraw"})
    assert refused.status_code == 403 and "you are bound to shop-a" in text_of(refused)
