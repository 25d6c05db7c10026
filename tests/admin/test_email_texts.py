"""The pages of the sentences of e-mails: drafts, versions, previews, mistakes, and who may do what."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from notifications.content import editing, shop_texts
from notifications.content.sentences import IN_WORDS
from notifications.models import EmailNotification, EmailText, EmailTextVersion
from runtime.process import cached_rows
from tests.kit.acts import acts, told_acts
from tests.kit.admin import MAILS
from tests.kit.attacks import TYPED
from tests.kit.orders import make_order, pay_order, place_order
from tests.kit.people import confirm_address, staff_client
from tests.kit.profiles import save_profile
from tests.kit.texts import AFTER, HELLO, READY, SUBJECT, THANKS, publish_texts
from tests.kit.words import EMAILS, new_id

pytestmark = pytest.mark.django_db(transaction=True)
TEXTS = "/admin/notifications/emailtext/"
EVIL = ("<script>alert", "<svg onload", "<img src=x")
PAID = f"{TEXTS}edit/order.paid/en/"


def press(client: Client, path: str, act: str, texts: dict[Any, str] | None = None, **values: str):
    """Press a button of the page, with the texts that it shows or others, by their keys."""
    page = client.get(path)
    shown = {field.key: field for field in page.context["fields"]}
    typed = {field.name: field.text for field in shown.values()}
    typed |= {shown[key].name: text for key, text in (texts or {}).items()}
    return client.post(path, {**typed, "seen_at": page.context["seen_at"], "act": act, **values}, follow=True)


def told(answer) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


def field(answer, key):
    return next(field for field in answer.context["fields"] if field.key == key)


def pay_and_read() -> EmailNotification:
    order = place_order(user_id=new_id(), email="ann@example.com", name="Ann", total_amount=500)
    pay_order(order_id=order.id)
    return EmailNotification.objects.get(order_id=order.id, event_type="order.paid")


def test_an_editor_publishes_a_sentence_that_the_next_email_has_and_its_page_names_the_version(admin_client):
    assert press(admin_client, PAID, "save", {READY: "It **ships** soon."}).status_code == 200
    assert "getting your order ready" in pay_and_read().body_text
    answer = press(admin_client, PAID, "publish", {SUBJECT: "Thanks: {reference}"})
    assert told(answer) == ["Version 1 is published. New e-mails have it within 10 seconds."]
    mail, version = pay_and_read(), EmailTextVersion.objects.get()
    assert mail.subject.startswith("Thanks: ") and mail.text_versions == [str(version.id)]
    assert "It ships soon." in mail.body_text and "It <strong>ships</strong> soon." in mail.body
    page = admin_client.get(f"{MAILS}{mail.id}/change/").content.decode()
    change = reverse("admin:notifications_emailtext_change", args=[version.text_id])
    assert f'<a href="{change}?version=1">version 1 of order.paid, en</a>' in page
    assert admin_client.get(f"{change}?version=1").headers["Location"] == f"{PAID}?version=1"
    assert version.published_by == "admin" and version.text.edited_by == "admin"
    assert [entry["original"] for entry in version.sentences] == [
        "Payment received for your order {reference}",
        "We are now getting your order ready.",
    ]
    assert told_acts() == ["Saved the draft.", "Published version 1 (was the original)."]


def test_the_list_shows_every_email_with_its_present_subject_and_no_word_of_the_files(admin_client):
    publish_texts({SUBJECT: "Bezahlt: {reference}"}, locale="de")
    answer = admin_client.get(TEXTS, {"language": "de"})
    lines = {page.event_type: subject for page, subject, *_ in answer.context["lines"]}
    assert list(lines) == [*EMAILS, "layout"]
    assert lines["order.paid"] == "Bezahlt: A-10234" and lines["order.refunded"].startswith("Erstattung")
    for path in (TEXTS, f"{PAID}", f"{TEXTS}edit/layout/fr/"):
        page = admin_client.get(path).content.decode()
        assert "<h1>" in page and not re.search(r"jinja|template|\{%|\{\{|%\(", page, re.IGNORECASE)
    for event_type in (*EMAILS, "layout"):
        assert admin_client.get(f"{TEXTS}edit/{event_type}/es/").status_code == 200


def test_a_draft_with_mistakes_is_saved_but_not_published(admin_client):
    answer = press(admin_client, PAID, "publish", {SUBJECT: "Hello {totl}", THANKS: "[x](http://a.test)"})
    assert told(answer) == ["The draft is saved, but not published."]
    assert field(answer, SUBJECT).mistake.startswith("{totl} is no variable of this sentence. Use {")
    assert field(answer, THANKS).mistake.startswith("The address of a link must begin with https://")
    page = answer.content.decode()
    assert f'id="{field(answer, SUBJECT).name}-mistake" role="status">{{totl}} is no variable' in page
    assert EmailText.objects.get().sentences[0]["text"] == "Hello {totl}"
    assert not EmailTextVersion.objects.exists()
    seen = {field.name: field.text for field in answer.context["fields"]} | {
        field(answer, SUBJECT).name: "Right"
    }
    seen[field(answer, THANKS).name] = ""
    answer = admin_client.post(
        PAID, seen | {"seen_at": answer.context["seen_at"], "act": "publish", "order": "a&b=c"}, follow=True
    )
    assert told(answer)[-1].startswith("Version 1 is published")
    assert answer.request["QUERY_STRING"] == "order=a%26b%3Dc"


def test_a_variable_of_another_email_is_refused(admin_client):
    answer = press(admin_client, PAID, "publish", {READY: "{refund_amount}"})
    assert field(answer, READY).mistake.startswith("{refund_amount} is no variable")
    press(admin_client, f"{TEXTS}edit/order.refunded/en/", "publish", {AFTER: "{refund_amount}"})
    assert EmailTextVersion.objects.get().text.event_type == "order.refunded"


@pytest.mark.parametrize("typed", TYPED.values(), ids=TYPED)
def test_what_attackers_type_into_each_field_is_refused_or_stays_text(admin_client, typed):
    """It fails no page and no e-mail, and is nowhere markup.

    It is typed into all fields at once, and then only into those that took it, until it is published.
    """
    before = pay_and_read()
    for path in (PAID, f"{TEXTS}edit/layout/en/"):
        page = admin_client.get(path)
        all_fields = fields = [field.name for field in page.context["fields"]]
        if len(typed) > 10_000:  # the page refuses a form of this size, however many fields it has
            fields = fields[:1]
        while fields:
            values = dict.fromkeys(fields, typed) | {"act": "publish", "seen_at": page.context["seen_at"]}
            page = admin_client.post(path, values)
            assert page.status_code in (200, 302, 400)
            assert not any(evil in page.content.decode() for evil in EVIL)
            if page.status_code != 200:
                break
            taken = [field.name for field in page.context["fields"] if field.text and not field.mistake]
            assert taken != fields
            fields = taken
        mail = pay_and_read()
        assert not any(evil in mail.body for evil in EVIL)
        assert not re.search('href="(?!https?://)', mail.body)
        assert "\u202e" not in mail.body_text and "\u2028" not in mail.body_text
        assert len(mail.body) < len(before.body) + 2 * 5 * 2000 * len(all_fields)


def test_too_long_a_text_is_not_stored(admin_client):
    answer = press(admin_client, PAID, "save", {READY: "x" * 2001})
    assert field(answer, READY).mistake == "It has 2,001 characters. Write at most 2,000."
    assert field(answer, READY).text == "x" * 2001 and not EmailText.objects.exists()


def test_the_preview_shows_a_chosen_order_the_newest_or_a_sample_that_fits(admin_client):
    text = {READY: "{reference} {total_amount}"}
    assert "A-10234 €68.90" in press(admin_client, PAID, "preview", text).context["email"].body_text
    assert "Refunded" not in press(admin_client, PAID, "preview").context["email"].body_text
    refunded = press(admin_client, f"{TEXTS}edit/order.refunded/en/", "preview").context["email"]
    assert refunded.subject == "Refund for your order A-10234: €68.90"
    first, second = make_order(reference="R-1", name="Ann"), make_order(reference="R-2", name="Bob")
    for chosen, name in (
        ("", "Bob"),
        ("R-1", "Ann"),
        (str(second.id), "Bob"),
        ("lost", "Anna Schmidt"),
        ("a\x00b", "Bob"),
    ):
        answer = press(admin_client, PAID, "preview", order=chosen)
        assert f"Hello {name}," in answer.context["email"].body_text, chosen
    german = f"{TEXTS}edit/order.refunded/de/"
    answer = press(admin_client, german, "preview", order=str(first.id))
    assert answer.context["email"].subject == "Erstattung für Ihre Bestellung R-1: 68,90 $"
    assert not EmailText.objects.exists()


def test_the_script_gets_the_preview_and_the_mistakes(admin_client):
    preview = reverse("admin:notifications_emailtext_preview", args=["order.paid", "en"])
    fields = {field.key: field.name for field in admin_client.get(PAID).context["fields"]}
    answer = admin_client.post(preview, {fields[SUBJECT]: "<b> {x}", fields[READY]: "**Soon**"}).json()
    assert answer["subject"] == "Payment received for your order A-10234"
    assert "<strong>Soon</strong>" in answer["html"] and "Soon" in answer["text"]
    assert answer["mistakes"].pop(fields[SUBJECT]).startswith("{x} is no variable")
    assert set(answer["mistakes"].values()) == {""}
    assert admin_client.get(preview).status_code == 403
    layout = reverse("admin:notifications_emailtext_preview", args=["layout", "en"])
    answer = admin_client.post(layout, {"event": "order.cancelled"}).json()
    assert "has been cancelled" in answer["subject"]


def test_an_editor_sends_the_preview_to_the_own_address_alone(admin_client, monkeypatch):
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr("orders.admin.previews.send_preview", lambda **values: sent.append(values) or "")
    User.objects.update(email="")
    answer = press(admin_client, PAID, "send", {SUBJECT: "Own {reference}"})
    assert told(answer) == ["Your account has no e-mail address. Open “My account”."] and not sent
    confirm_address(User.objects.get(), "ada@example.com")
    answer = press(admin_client, PAID, "send", {SUBJECT: "Own {reference}"})
    assert told(answer) == ["Sent to ada@example.com."]
    assert field(answer, SUBJECT).text == "Own {reference}" and not EmailText.objects.exists()
    assert (sent[0]["email"].subject, sent[0]["recipient_email"]) == ("Own A-10234", "ada@example.com")
    assert "event=order.paid locale=en to=hash:" in acts().get().act
    answer = press(admin_client, PAID, "send", {SUBJECT: "{lost}"})
    assert told(answer) == ["Nothing was sent. Correct the texts first."] and len(sent) == 1


def test_an_old_version_is_shown_and_loaded_into_the_draft(admin_client):
    for text in ("one for you", "two for you"):
        press(admin_client, PAID, "publish", {SUBJECT: text})
    page = admin_client.get(f"{PAID}?version=1")
    assert field(page, SUBJECT).text == "one for you" and not page.context["may_edit"]
    assert "Save the draft" not in page.content.decode()
    assert "<del>one</del><ins>two</ins> for you" in admin_client.get(PAID).content.decode()
    answer = press(admin_client, PAID, "restore", number="1")
    assert told(answer) == ["Version 1 is in the draft. Customers get it when you publish it."]
    text = EmailText.objects.get()
    assert (text.sentences[0]["text"], text.published, text.versions.count()) == ("one for you", 2, 2)
    assert press(admin_client, PAID, "restore", number="9").status_code == 404
    for number in ("x", "9", "", "1" * 5000):
        assert admin_client.get(PAID, {"version": number}).status_code == 404


def test_a_doubtful_text_is_published_after_a_question(admin_client):
    for text, doubt in (("<b>Thanks</b>", "Customers will read <b>"), ("long " * 300, "It has 1,499 char")):
        answer = press(admin_client, PAID, "publish", {READY: text})
        assert field(answer, READY).mistake.startswith(doubt) and field(answer, READY).is_first_mistake
        assert "Publish all the same" in answer.content.decode()
        assert not EmailTextVersion.objects.filter(sentences__0__text=text.strip()).exists()
        other = press(admin_client, PAID, "publish", {READY: f"{text} <i>"}, sure="0" * 16)
        assert told(other)[0].startswith("It is not published yet.")
        press(admin_client, PAID, "publish", {READY: text}, sure=answer.context["sure"])
        assert EmailTextVersion.objects.filter(sentences__0__text=text.strip()).exists()


def test_the_page_goes_to_the_first_mistake(admin_client):
    answer = press(admin_client, PAID, "publish", {SUBJECT: "fine", READY: "%(reference)s is ready"})
    assert field(answer, READY).mistake == "Write {reference}, and not %(reference)s."
    page = answer.content.decode()
    assert page.count("autofocus") == page.count('aria-invalid="true"') == 1
    publish_texts({READY: "%(reference)s is ready"})  # of a release before: it stays in use
    assert "%(reference)s is ready" in pay_and_read().body_text


def test_the_preview_loads_images_of_the_logo_s_origin_alone(admin_client):
    assert "https:" not in admin_client.get(PAID).headers["Content-Security-Policy"]
    save_profile("", logo_url="https://cdn.shop.example/logo.png")
    policy = admin_client.get(PAID).headers["Content-Security-Policy"]
    assert "img-src 'self' data: https://cdn.shop.example;" in policy


def test_withdrawn_texts_leave_the_originals_in_use_once(admin_client, caplog):
    press(admin_client, PAID, "publish", {SUBJECT: "mine"})
    assert pay_and_read().subject == "mine"
    press(admin_client, PAID, "withdraw")
    assert pay_and_read().subject.startswith("Payment received")
    assert told_acts()[-1] == "Withdrew version 1."
    caplog.clear()
    answer = press(admin_client, PAID, "withdraw")
    assert told(answer) == ["No version was in use."]
    assert told_acts().count("Withdrew version 1.") == 1 and "own texts withdrawn" not in caplog.text
    assert field(answer, SUBJECT).text == "mine"  # the draft stays


def test_of_two_editors_the_second_keeps_the_text_and_overwrites_nothing(admin_client):
    for seen_at in ("", admin_client.get(PAID).context["seen_at"]):
        press(admin_client, PAID, "save", {SUBJECT: f"first{seen_at}"})
        answer = press(admin_client, PAID, "publish", {SUBJECT: "second"}, seen_at=seen_at)
        assert told(answer)[0].startswith("admin has changed these texts since you opened them. Copy your")
        assert field(answer, SUBJECT).text == "second"
    assert EmailText.objects.get().sentences[0]["text"].startswith("first")
    assert not EmailTextVersion.objects.exists()
    answer = press(admin_client, PAID, "save", {SUBJECT: "third"}, seen_at="2026-01-01T00:00:00+00:00")
    assert told(answer)[0].startswith("admin has changed these texts")


def test_a_draft_that_another_editor_saves_meanwhile_is_neither_published_nor_lost(admin_client, monkeypatch):
    press(admin_client, PAID, "publish", {SUBJECT: "one"})

    make_entries = editing.make_entries

    def save_another() -> None:
        text = EmailText.objects.get()
        entries = make_entries({SUBJECT: "unfinished"}, language="en")
        seen_at = text.edited_at.isoformat()
        keys = {"source": "", "event_type": "order.paid", "language": "en"}
        editing.save_draft(**keys, entries=entries, username="bob", seen_at=seen_at)

    make_entries = editing.make_entries
    with monkeypatch.context() as patch:
        patch.setattr(editing, "make_entries", lambda *a, **b: save_another() or make_entries(*a, **b))
        answer = press(admin_client, PAID, "publish", {SUBJECT: "two"})
        assert told(answer)[0].startswith("bob has changed these texts since you opened them.")
    assert EmailText.objects.get().sentences[0]["text"] == "unfinished"
    assert EmailTextVersion.objects.count() == 1


def test_the_texts_of_a_shop_stand_above_those_of_every_shop(admin_client, settings):
    settings.ORDER_SOURCES = ["shop-b"]
    save_profile("shop-b", shop_name="B")
    press(admin_client, PAID, "publish", {READY: "For all."})
    answer = admin_client.get(PAID, {"source": "shop-b"})
    assert field(answer, READY).present == "For all." and field(answer, READY).text == ""
    answer = press(admin_client, f"{PAID}?source=shop-b", "publish", {SUBJECT: "Of {shop_name}"})
    assert answer.context["email"].subject == "Of B" and "For all." in answer.context["email"].body_text
    assert EmailTextVersion.objects.get(text__source="shop-b").text.locale == "en"
    for query in ({"source": "lost"}, {"source": "a\x00b"}):
        assert admin_client.get(PAID, query).status_code == 404
    for path in ("order.lost/en", "order.paid/xx"):
        assert admin_client.get(f"{TEXTS}edit/{path}/").status_code == 404


def test_the_page_shows_texts_for_an_older_original_next_to_both(admin_client):
    gone = READY._replace(msgid="We did.")
    publish_texts({READY: "Soon.", gone: "Done."}, originals={READY: "Old.", gone: "We did."})
    answer = admin_client.get(PAID)
    page = answer.content.decode()
    assert "If it still fits, publish it again." in page and "<dd>Old.</dd>" in page
    assert "No sample order has this sentence. Your text is used only if an e-mail still has it." in page
    assert field(answer, gone).label == "Not in the samples" and field(answer, gone).text == "Done."
    assert "2 to check" in admin_client.get(TEXTS).content.decode()
    press(admin_client, PAID, "publish", {gone: ""})
    assert admin_client.get(PAID).context["troubles"] == []


def test_a_text_in_a_field_cannot_break_out_of_it(admin_client):
    evil = '</textarea><script>alert(1)</script>"'
    page = press(admin_client, PAID, "save", {SUBJECT: evil, READY: evil}).content.decode()
    assert "<script>alert(1)" not in page
    frame = re.search(r'<iframe[^>]* sandbox data-html="([^"]*)"', page)
    assert frame and "&amp;lt;script&amp;gt;" in frame[1]


def test_who_may_edit_see_and_neither(admin_client):
    version = publish_texts()
    editor = staff_client("edit_texts", name="editor")
    viewer = staff_client("view_emailtext", name="viewer")
    nobody = staff_client(name="nobody")
    make_order(name="Ann Secret")
    change = f"{TEXTS}{version.text_id}/change/"
    for client, status in (editor, 200), (viewer, 200), (nobody, 403):
        assert client.get(TEXTS).status_code == client.get(PAID).status_code == status
        assert client.get(change).status_code == (302 if status == 200 else status)
        assert client.get(f"{TEXTS}add/").status_code == 403
    for client in viewer, nobody:
        for act in "save", "publish", "preview", "restore", "withdraw", "send":
            assert client.post(PAID, {"act": act, "number": "1"}).status_code == 403
        assert client.post(f"{PAID}preview/", {}).status_code == 403
    assert b"Ann Secret" not in editor.get(PAID).content  # without the permission to see orders
    assert b"Save the draft" not in viewer.get(PAID).content
    assert EmailText.objects.get().published == 1


def test_the_previews_of_an_order_use_the_texts(admin_client):
    publish_texts({SUBJECT: "corrected {reference}"})
    page = admin_client.get(f"/admin/orders/order/{make_order().id}/emails/", {"event": "order.paid"})
    assert page.context["email"].subject == "corrected R-1"


def test_an_email_whose_version_is_not_stored_says_so(admin_client):
    mail = pay_and_read()
    EmailNotification.objects.filter(id=mail.id).update(text_versions=[str(new_id())])
    page = admin_client.get(f"{MAILS}{mail.id}/change/").content.decode()
    assert "which is not stored" in page


def test_another_process_sees_a_new_version_after_one_refresh(admin_client):
    shop_texts.versions.get()
    before = shop_texts.versions.value, shop_texts.versions.loaded_version
    press(admin_client, PAID, "publish", {SUBJECT: "new"})
    shop_texts.versions.value, shop_texts.versions.loaded_version = before  # as in another process
    assert pay_and_read().subject.startswith("Payment received")
    cached_rows.refresh()
    assert pay_and_read().subject == "new"


def test_a_layout_shows_its_sentences_once_for_all_emails(admin_client):
    layout = f"{TEXTS}edit/layout/en/"
    answer = press(admin_client, layout, "publish", {HELLO: "Hi {name}!"})
    assert [name for name, _ in answer.context["events"]] == EMAILS
    assert "Hi Ann!" in pay_and_read().body_text


@pytest.mark.parametrize("event_type", [*EMAILS, "layout"])
def test_each_email_and_each_variable_has_words_and_an_example(admin_client, event_type):
    page = admin_client.get(f"{TEXTS}edit/{event_type}/de/")
    assert "_" not in page.context["title"] and "." not in page.context["title"]
    names = [name for name, words, example in page.context["variables"] if not (name in IN_WORDS and example)]
    assert page.context["variables"] and names == []
