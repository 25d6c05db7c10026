"""The editor of e-mail templates: drafts, previews with a real order, checks, versions, and who may what."""

from __future__ import annotations

import json
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from notifications import editing, published
from notifications.models import EmailTemplate, EmailTemplateVersion
from runtime.process import cached_rows
from tests.kit.admin import MAILS
from tests.kit.orders import make_order, pay_order, place_order
from tests.kit.people import staff_client
from tests.kit.templates import publish_template, text_of_file
from tests.kit.words import EmailNotification, new_id

pytestmark = pytest.mark.django_db(transaction=True)
TEMPLATES = "/admin/notifications/emailtemplate/"


def begin(client: Client, **keys: str) -> str:
    """Add a template in the admin, and return the address of its editor."""
    values = {"event_type": "order.paid", "source": "", "locale": ""} | keys
    answer = client.post(f"{TEMPLATES}add/", values)
    assert answer.status_code == 302, answer.context["form"].errors
    return str(answer.headers["Location"])


def press(client: Client, path: str, act: str, **texts: str):
    """Press a button of the editor, with the texts that it shows or others."""
    page = client.get(path)
    shown = {field: text for field, _, _, text in page.context["texts"]}
    values = {**shown, "seen_at": page.context["seen_at"], "act": act, **texts}
    return client.post(path, values, follow=True)


def told(answer) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


def mistakes(answer) -> str:
    return "; ".join(one["says"] for one in answer.context["mistakes"])


def acts() -> list[str]:
    return list(LogEntry.objects.order_by("id").values_list("change_message", flat=True))


def test_an_editor_publishes_a_subject_that_the_next_email_has_and_its_page_names_the_version(admin_client):
    path = begin(admin_client)
    assert press(admin_client, path, "save", subject="Thank you, {{ name }}").status_code == 200
    assert pay_and_read().subject.startswith("Payment received")
    answer = press(admin_client, path, "publish", subject="Thanks, {{ name }}!")
    assert told(answer) == ["Version 1 is published. New e-mails have it within 10 seconds."]
    mail = pay_and_read()
    version = EmailTemplateVersion.objects.get()
    assert (mail.subject, mail.template_version) == ("Thanks, Ann!", version.id)
    assert "We are now getting your order ready." in mail.body_text  # the rest is that of the file
    page = admin_client.get(f"{MAILS}{mail.id}/change/").content.decode()
    assert f'<a href="{path}?version=1">version 1 of order.paid</a>' in page
    assert version.published_by == "admin" and version.template.edited_by == "admin"
    assert acts() == [
        "Began with the text in use.",
        "Saved the draft.",
        "Saved the draft.",
        "Published version 1.",
    ]


def pay_and_read() -> EmailNotification:
    order = place_order(user_id=new_id(), email="ann@example.com", name="Ann", total_amount=500)
    pay_order(order_id=order.id)
    return EmailNotification.objects.get(order_id=order.id, event_type="order.paid")


def test_a_draft_with_mistakes_is_saved_but_not_published(admin_client):
    path = begin(admin_client)
    answer = press(admin_client, path, "publish", subject="Hello {{ totl }}", body_text=" ")
    assert told(answer) == ["The draft is saved, but not published."]
    assert "subject.txt, line 1: The variable totl is unknown." in mistakes(answer)
    assert EmailTemplate.objects.get().subject == "Hello {{ totl }}"
    answer = press(admin_client, path, "publish", subject="Hello", body_text=" ")
    assert "body.txt: This part is empty." in mistakes(answer)
    assert not EmailTemplateVersion.objects.exists()
    assert EmailTemplate.objects.get().published is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # in the branch of a language, of the smallest order, and of the largest
        ("{% if lang == 'fr' %}{{ items[7] - 1 }}{% endif %}x", "body.html"),
        ("{% if not items %}{{ reason - 1 }}{% endif %}x", "TypeError"),
        ("{% for a in items %}{% for b in items %}{% for c in items %}"
            "{% for d in items %}x{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
         "more than 50000 steps"),
        ("<a href='{{ tracking_url }}'>x</a>", "Links must be https"),  # empty without a parcel
    ],
)  # fmt: skip
def test_every_kind_of_order_is_checked_in_every_language(admin_client, text, expected):
    answer = press(admin_client, begin(admin_client), "publish", body_html=text)
    assert expected in mistakes(answer)
    assert not EmailTemplateVersion.objects.exists()


def test_after_mistakes_the_same_page_can_publish(admin_client):
    path = begin(admin_client)
    answer = press(admin_client, path, "publish", subject="{{ totl }}")
    texts = {field: text for field, _, _, text in answer.context["texts"]} | {"subject": "right"}
    values = {**texts, "seen_at": answer.context["seen_at"], "act": "publish", "order": "a&b=c"}
    answer = admin_client.post(path, values, follow=True)
    assert told(answer)[-1].startswith("Version 1 is published")
    assert answer.request["QUERY_STRING"] == "order=a%26b%3Dc"


def test_a_long_name_shortens_the_subject_and_is_no_mistake(admin_client):
    subject = "{{ name }}, thank you for your order {{ reference }} at {{ shop_name }}"
    answer = press(admin_client, begin(admin_client), "publish", subject=subject)
    assert told(answer)[0].startswith("Version 1 is published")


def test_a_template_of_one_language_is_checked_in_it_alone(admin_client):
    text = "{% if lang == 'fr' %}{{ reason - 1 }}{% endif %}x"
    answer = press(admin_client, begin(admin_client, locale="de"), "publish", body_html=text)
    assert told(answer)[0].startswith("Version 1 is published")


def test_the_preview_shows_a_chosen_order_the_newest_or_a_sample(admin_client):
    path = begin(admin_client)
    text = {"subject": "{{ name }} {{ total_amount }}"}
    assert press(admin_client, path, "preview", **text).context["mail"]["subject"] == "Anna Schmidt €68.90"
    first, second = make_order(reference="R-1", name="Ann"), make_order(reference="R-2", name="Bob")
    for chosen, name in ("", "Bob"), ("R-1", "Ann"), (str(second.id), "Bob"), ("lost", "Anna Schmidt"):
        answer = press(admin_client, path, "preview", order=chosen, **text)
        assert answer.context["mail"]["subject"].startswith(name), chosen
    answer = press(admin_client, path, "preview", order=str(first.id), language="de", **text)
    assert answer.context["mail"]["subject"] == "Ann 123,45 $"
    assert EmailTemplate.objects.get().subject != text["subject"]  # nothing was saved
    assert ("name", "Ann") in answer.context["variables"]
    assert dict(answer.context["variables"])["items"].endswith(
        "item.name, item.quantity, item.unit_amount, item.line_amount"
    )


def test_the_script_gets_the_preview_and_the_mistakes(admin_client):
    path = begin(admin_client)
    texts = text_of_file() | {"subject": "<b>", "body_html": "<p>{{ name }}</p>"}
    answer = admin_client.post(f"{path.removesuffix('change/')}preview/", texts).json()
    assert answer["mail"]["subject"] == "<b>" and answer["mail"]["html"] == "<p>Anna Schmidt</p>\n"
    answer = admin_client.post(
        f"{path.removesuffix('change/')}preview/", texts | {"subject": "{{ x }}"}
    ).json()
    assert answer["mail"] is None
    assert answer["mistakes"][0] | {"text": ""} == {
        "part": "subject.txt",
        "line": 1,
        "text": "",
        "says": "subject.txt, line 1: The variable x is unknown.",
    }
    long = admin_client.post(f"{path.removesuffix('change/')}preview/", texts | {"subject": "x" * 50_001})
    assert "50000" in json.dumps(long.json())


def test_a_text_in_the_editor_cannot_break_out_of_it(admin_client):
    path = begin(admin_client)
    evil = '</textarea><script>alert(1)</script>"'
    page = press(admin_client, path, "save", subject=evil, body_html=f"<p>{evil}").content.decode()
    assert "<script>alert(1)" not in page
    frame = re.search(r'<iframe[^>]* sandbox srcdoc="([^"]*)"', page)
    assert frame and "&lt;script&gt;" in frame[1]


def test_an_old_version_is_shown_and_restored_as_a_new_one(admin_client):
    path = begin(admin_client)
    for subject in ("one", "two"):
        press(admin_client, path, "publish", subject=subject)
    page = admin_client.get(f"{path}?version=1")
    assert page.context["texts"][0][-1] == "one" and not page.context["may_edit"]
    assert "Save the draft" not in page.content.decode()
    answer = admin_client.post(path, {"act": "restore", "number": "1"}, follow=True)
    assert told(answer) == ["Restored version 1 as version 3."]
    version = EmailTemplateVersion.objects.get(number=3)
    assert (version.subject, version.restored_from, version.template.published) == ("one", 1, 3)
    assert version.template.subject == "one"
    assert pay_and_read().template_version == version.id
    assert acts()[-1] == "Restored version 1 as version 3."
    assert admin_client.post(path, {"act": "restore", "number": "9"}).status_code == 404
    for number in ("x", "9", "", "1" * 5000):
        assert admin_client.get(path, {"version": number}).status_code == 404
    assert admin_client.post(f"{path}?version=x", {"act": "preview"}).status_code == 200


def test_a_version_that_fails_the_checks_of_today_is_not_restored(admin_client):
    publish_template(subject="{{ lost }}")
    publish_template(subject="fine")
    path = f"{TEMPLATES}{EmailTemplate.objects.get().id}/change/"
    answer = admin_client.post(path, {"act": "restore", "number": "1"}, follow=True)
    assert told(answer)[0].startswith("Version 1 was not restored.")
    assert EmailTemplateVersion.objects.count() == 2


def test_a_withdrawn_template_leaves_the_file_in_use(admin_client):
    path = begin(admin_client)
    press(admin_client, path, "publish", subject="mine")
    assert pay_and_read().subject == "mine"
    press(admin_client, path, "withdraw")
    assert pay_and_read().subject.startswith("Payment received")
    assert acts()[-1] == "Withdrew version 1."


def test_a_template_is_withdrawn_once(admin_client, caplog):
    path = begin(admin_client)
    press(admin_client, path, "publish", subject="mine")
    press(admin_client, path, "withdraw")
    caplog.clear()
    answer = press(admin_client, path, "withdraw")
    assert told(answer) == ["No version was in use."]
    assert acts().count("Withdrew version 1.") == 1 and "Withdrew version None." not in acts()
    assert "template withdrawn" not in caplog.text


def test_of_two_editors_the_second_keeps_the_text_and_overwrites_nothing(admin_client):
    path = begin(admin_client)
    seen_at = admin_client.get(path).context["seen_at"]
    press(admin_client, path, "save", subject="first")
    texts = text_of_file() | {"subject": "second", "seen_at": seen_at, "act": "publish"}
    answer = admin_client.post(path, texts)
    assert told(answer)[0].startswith("admin has changed this template since")
    assert answer.context["texts"][0][-1] == "second"
    assert EmailTemplate.objects.get().subject == "first" and not EmailTemplateVersion.objects.exists()


def test_a_draft_that_another_editor_saves_meanwhile_is_neither_published_nor_lost(admin_client, monkeypatch):
    path = begin(admin_client)
    publish_template(subject="one")
    publish_template(subject="two")
    seen_at = admin_client.get(path).context["seen_at"]

    def save_another() -> None:
        template = EmailTemplate.objects.get()
        parts = published.parts_of(template) | {"subject.txt": "unfinished"}
        seen_at = template.edited_at.isoformat()
        editing.save_draft(id=template.id, parts=parts, username="bob", seen_at=seen_at)

    publish = editing.publish
    with monkeypatch.context() as patch:
        patch.setattr(editing, "publish", lambda **values: save_another() or publish(**values))
        answer = press(admin_client, path, "publish")
    assert told(answer)[0].startswith("bob has changed this template since")
    answer = admin_client.post(path, {"act": "restore", "number": "1", "seen_at": seen_at}, follow=True)
    assert told(answer)[0].startswith("Version 1 was not restored. bob has changed this template since")
    assert EmailTemplate.objects.get().subject == "unfinished" and EmailTemplateVersion.objects.count() == 2
    page = admin_client.get(path)
    assert page.content.decode().count(f'name="seen_at" value="{page.context["seen_at"]}"') == 2


def test_who_may_edit_see_and_neither(admin_client):
    path = begin(admin_client)
    publish_template()
    editor = staff_client("edit_templates", name="editor")
    viewer = staff_client("view_emailtemplate", name="viewer")
    nobody = staff_client(name="nobody")
    make_order(name="Ann Secret")
    for client, list_status, add_status in (editor, 200, 200), (viewer, 200, 403), (nobody, 403, 403):
        assert client.get(TEMPLATES).status_code == client.get(path).status_code == list_status
        assert client.get(f"{TEMPLATES}add/").status_code == add_status
    for client in viewer, nobody:
        for act in "save", "publish", "preview", "restore", "withdraw":
            assert client.post(path, {"act": act, "number": "1"}).status_code == 403
        assert client.post(f"{path.removesuffix('change/')}preview/", {}).status_code == 403
    assert b"Ann Secret" not in editor.get(path).content  # without the permission to see orders
    assert b"Save the draft" not in viewer.get(path).content
    assert EmailTemplate.objects.get().published == 1


def test_a_template_begins_with_the_text_that_it_would_replace(admin_client):
    publish_template(subject="for all")
    path = begin(admin_client, locale="de")
    assert admin_client.get(path).context["texts"][0][-1] == "for all"


def test_a_template_is_begun_once(admin_client):
    first = begin(admin_client, locale="de")
    press(admin_client, first, "save", subject="mine")
    assert begin(admin_client, locale="de") == first
    assert EmailTemplate.objects.get().subject == "mine"
    assert acts() == ["Began with the text in use.", "Saved the draft."]


def test_the_previews_of_an_order_use_the_template(admin_client):
    publish_template(subject="corrected {{ reference }}")
    page = admin_client.get(f"/admin/orders/order/{make_order().id}/emails/", {"event": "order.paid"})
    assert page.context["mail"].subject == "corrected R-1"


def test_an_email_whose_version_is_not_stored_says_so(admin_client):
    mail = pay_and_read()
    EmailNotification.objects.filter(id=mail.id).update(template_version=new_id())
    page = admin_client.get(f"{MAILS}{mail.id}/change/").content.decode()
    assert "which is not stored" in page


def test_another_process_sees_a_new_version_after_one_refresh(admin_client):
    path = begin(admin_client)
    before = published.versions.value, published.versions.loaded_version
    press(admin_client, path, "publish", subject="new")
    published.versions.value, published.versions.loaded_version = before  # as in another process
    assert pay_and_read().subject.startswith("Payment received")
    cached_rows.refresh()
    assert pay_and_read().subject == "new"


def test_a_template_begins_with_the_file_if_the_version_in_memory_is_gone(admin_client, monkeypatch):
    """For example after a restore: a process looks for new versions every few seconds."""
    gone = published.Version(new_id(), "order.paid", 1, {})
    monkeypatch.setattr(published, "find", lambda **_: (gone,))
    begin(admin_client)
    assert EmailTemplate.objects.get().subject == text_of_file()["subject"]
