"""The admin of mail profiles: its checks, its preview and its log. The command loads by the same checks."""

from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from notifications.content.editing import make_entries, save_draft
from notifications.content.template_files import Key
from notifications.logo import BadLogo, LogoNotChecked
from notifications.models import EmailText, EmailTextVersion, MailProfile
from notifications.profile_form import DEFAULT_COLOUR
from tests.kit.acts import acts
from tests.kit.people import staff_client
from tests.kit.profiles import save_profile
from tests.kit.texts import AFTER, READY, publish_texts

pytestmark = pytest.mark.django_db
PROFILES = "/admin/notifications/mailprofile/"
VALUES = {
    "source": "shop-a",
    "from_email": "Shop A <orders@shop-a.test>",
    "shop_name": "Shop A",
    "postal_address": "1 Road, Town",
    "colour": "#7c2d12",
}


@pytest.fixture(autouse=True)
def _sources(settings):
    settings.ORDER_SOURCES = ["shop-a", "shop-b"]


def errors(response) -> dict[str, list[str]]:
    return dict(response.context["adminform"].form.errors)


class TestThePage:
    def test_saves_a_profile_and_logs_who_did_it(self, admin_client):
        options = {"mailgun_domain": "mg.shop-a.test", "postmark_message_stream": "orders"}
        answer = admin_client.post(f"{PROFILES}add/", VALUES | options)
        assert answer.status_code == 302, errors(answer)
        profile = MailProfile.objects.get()
        assert profile.account == {
            "mailgun": {"domain": "mg.shop-a.test"},
            "postmark": {"message_stream": "orders"},
        }
        assert acts().get().subject_id == str(profile.id)
        assert "shop-a" in admin_client.get(PROFILES).content.decode()
        page = admin_client.get(f"{PROFILES}{profile.id}/change/").content.decode()
        assert "mg.shop-a.test" in page

    def test_of_two_editors_the_second_overwrites_nothing(self, admin_client):
        profile = save_profile(source="shop-a", shop_name="Shop A")
        path = f"{PROFILES}{profile.id}/change/"
        seen_at = admin_client.get(path).context["adminform"].form["seen_at"].value()
        first, second = (VALUES | {"seen_at": seen_at, "shop_name": name} for name in ("First", "Second"))
        assert admin_client.post(path, first).status_code == 302
        answer = admin_client.post(path, second)
        text = (
            "Another user has changed this profile since you opened it. Copy your changes, and open it again."
        )
        assert errors(answer) == {"__all__": [text]}
        assert f'name="seen_at" value="{seen_at}"' in answer.content.decode()
        assert MailProfile.objects.get().shop_name == "First"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("source", "shop-c"),
            ("from_email", "Shop"),
            ("from_email", "Shop <a@b.test>\r\nBcc: x@y.test"),
            ("reply_to", "help@localhost"),
            ("copy_to", "office"),
            ("url", "javascript:alert(1)"),
            ("logo_url", "logo.png"),
            ("logo_url", "http://shop-a.test/logo.png"),
            ("logo_url", "https:///logo.png"),
            ("default_locale", "klingon"),
            ("colour", "red"),
            ("colour", "#ffff00"),
            ("shop_name", ""),
        ],
    )
    def test_refuses_a_wrong_value_and_says_what_would_be_right(self, admin_client, field, value):
        assert set(errors(admin_client.post(f"{PROFILES}add/", VALUES | {field: value}))) == {field}
        assert not MailProfile.objects.exists()

    def test_says_next_to_the_field_that_a_logo_needs_https(self, admin_client):
        logo = "http://shop-a.test/logo.png"
        page = admin_client.post(f"{PROFILES}add/", VALUES | {"logo_url": logo}).content.decode()
        row = page.split("field-logo_url")[1].split("field-copy_to")[0]
        assert "only by https. Write its address, such as https://shop.example.com/logo.png." in row

    @staticmethod
    def offered(client: Client, path: str) -> list[tuple[str, str]]:
        field = client.get(f"{PROFILES}{path}").context["adminform"].form["source"]
        assert str(field).startswith("<select")
        return list(field.field.widget.choices)

    def test_offers_the_sources(self, admin_client):
        own = ("", "own orders")
        assert self.offered(admin_client, "add/") == [own, ("shop-a", "shop-a"), ("shop-b", "shop-b")]

    def test_keeps_a_source_that_is_no_longer_in_the_settings(self, admin_client, settings):
        profile = save_profile("shop-a")
        settings.ORDER_SOURCES = ["shop-b"]
        path = f"{profile.id}/change/"
        assert ("shop-a", "shop-a") in self.offered(admin_client, path)
        assert ("shop-a", "shop-a") not in self.offered(admin_client, "add/")
        answer = admin_client.post(f"{PROFILES}{path}", VALUES | {"shop_name": "Still A"})
        assert answer.status_code == 302, errors(answer)
        assert MailProfile.objects.get().shop_name == "Still A"

    @pytest.mark.parametrize(
        ("colour", "is_taken"), [("#767676", True), ("#777777", False), ("#ffd700", False)]
    )
    def test_a_colour_on_which_white_is_hard_to_read_is_refused(self, admin_client, colour, is_taken):
        answer = admin_client.post(f"{PROFILES}add/", VALUES | {"colour": colour})
        assert (answer.status_code == 302) is is_taken
        assert is_taken or "Choose a darker colour." in errors(answer)["colour"][0]

    @pytest.mark.parametrize(
        ("sender", "word"),
        [
            ("tea@gmail.com", "a mailbox at gmail.com"),
            ("tea@gone.test.com", "does not exist"),
            ("a@b.test", ""),
        ],
    )
    def test_a_sender_that_will_not_work_is_warned_about_and_saved(
        self, admin_client, monkeypatch, sender, word
    ):
        def refuse(*_: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        page = admin_client.post(f"{PROFILES}add/", VALUES | {"from_email": sender}, follow=True)
        texts = [str(message) for message in page.context["messages"] if message.level_tag == "warning"]
        assert MailProfile.objects.count() == 1 and [word in text for text in texts] == [True] * bool(word)

    def test_an_empty_colour_is_the_default_that_the_picker_shows(self, admin_client):
        page = admin_client.get(f"{PROFILES}add/").content.decode()
        assert f'data-picks-for="id_colour" value="{DEFAULT_COLOUR}"' in page
        assert admin_client.post(f"{PROFILES}add/", VALUES | {"colour": ""}).status_code == 302
        assert MailProfile.objects.get().colour == ""
        mail = admin_client.post(f"{PROFILES}preview/", VALUES | {"source": "shop-b", "colour": ""})
        assert f"background-color:{DEFAULT_COLOUR}" in mail.content.decode()

    def test_needs_the_permission(self):
        assert staff_client().get(PROFILES).status_code == 403
        viewer = staff_client("view_mailprofile", name="viewer")
        assert viewer.get(PROFILES).status_code == 200
        assert viewer.get(f"{PROFILES}{save_profile('shop-a').id}/change/").status_code == 200
        assert viewer.post(f"{PROFILES}add/", VALUES).status_code == 403


LOGO = "https://shop-a.test/logo.png"


@pytest.fixture
def fetched(monkeypatch) -> list[str]:
    """Collect the addresses of logos that are fetched. One with "bad" or "away" in it is."""
    fetched: list[str] = []

    def check(url: str) -> None:
        fetched.append(url)
        if "bad" in url:
            raise BadLogo("This is not an image.")
        if "away" in url:
            raise LogoNotChecked("The logo could not be checked.")

    monkeypatch.setattr("notifications.profile_form.check_logo", check)
    return fetched


class TestTheLogo:
    def test_is_fetched_once_when_its_address_is_saved(self, admin_client, fetched):
        admin_client.post(f"{PROFILES}preview/", VALUES | {"logo_url": LOGO})
        admin_client.post(f"{PROFILES}add/", VALUES | {"logo_url": LOGO, "colour": "red"})
        assert fetched == []
        admin_client.post(f"{PROFILES}add/", VALUES | {"logo_url": LOGO})
        path = f"{PROFILES}{MailProfile.objects.get().id}/change/"
        admin_client.post(path, VALUES | {"logo_url": LOGO, "shop_name": "Tea"})
        assert fetched == [LOGO]
        admin_client.post(path, VALUES | {"logo_url": ""})
        admin_client.post(path, VALUES | {"logo_url": LOGO})
        assert fetched == [LOGO, LOGO] and MailProfile.objects.get().logo_url == LOGO

    def test_that_is_wrong_is_refused_at_its_field(self, admin_client, fetched):
        answer = admin_client.post(f"{PROFILES}add/", VALUES | {"logo_url": "https://shop-a.test/bad"})
        assert errors(answer) == {"logo_url": ["This is not an image."]} and not MailProfile.objects.exists()

    def test_that_cannot_be_fetched_is_saved_with_a_warning(self, admin_client, fetched):
        values = VALUES | {"logo_url": "https://shop-a.test/away"}
        page = admin_client.post(f"{PROFILES}add/", values, follow=True)
        (said,) = (str(message) for message in page.context["messages"] if message.level_tag == "warning")
        assert said.startswith("The logo could not be checked.") and MailProfile.objects.count() == 1

    def test_of_a_file_is_fetched_if_it_is_new(self, tmp_path, fetched, capsys):
        file = (
            "- {source: shop-a, from_email: a@b.test, shop_name: A, postal_address: x,"
            " logo_url: https://b.test/%s}"
        )
        with pytest.raises(CommandError, match="shop-a: logo_url: This is not an image"):
            load(tmp_path, file % "bad")
        for said in ("created", "unchanged"):
            assert load(tmp_path, file % "away") == f"shop-a: {said}\n"
        assert capsys.readouterr().err == "shop-a: logo_url: The logo could not be checked.\n"
        assert [url.rpartition("/")[2] for url in fetched] == ["bad", "away"]

    def test_of_before_is_put_back_without_a_fetch(self, admin_client, fetched):
        admin_client.post(f"{PROFILES}add/", VALUES | {"logo_url": LOGO})
        profile = MailProfile.objects.get()
        admin_client.post(f"{PROFILES}{profile.id}/change/", VALUES | {"logo_url": ""})
        admin_client.post(f"{PROFILES}{profile.id}/history/", {"row": acts().last().id})
        assert MailProfile.objects.get().logo_url == LOGO and fetched == [LOGO]


class TestThePreview:
    def test_shows_what_the_form_has_before_it_is_saved(self, admin_client):
        logo = "https://shop-a.test/logo.png;,x"
        answer = admin_client.post(f"{PROFILES}preview/", VALUES | {"shop_name": "Tea", "logo_url": logo})
        text = answer.content.decode()
        assert 'alt="Tea"' in text and "#7c2d12" in text and "A-10234" in text
        policy = answer.headers["Content-Security-Policy"]
        assert "img-src data: https://shop-a.test/logo.png%3B%2Cx;" in policy and "sandbox" in policy
        assert not MailProfile.objects.exists()

    def test_lists_the_mistakes_of_the_form(self, admin_client):
        text = admin_client.post(f"{PROFILES}preview/", VALUES | {"colour": "<red>"}).content.decode()
        assert "six hexadecimal digits" in text and "<red>" not in text

    def test_of_a_saved_profile_shows_its_language(self, admin_client):
        profile = save_profile("shop-a", default_locale="de")
        assert '<html lang="de"' in admin_client.get(f"{PROFILES}{profile.id}/preview/").content.decode()

    def test_needs_the_permission(self):
        profile = save_profile("shop-a")
        assert staff_client().get(f"{PROFILES}{profile.id}/preview/").status_code == 403


def printed() -> str:
    out = io.StringIO()
    call_command("profiles", "print", stdout=out)
    return out.getvalue()


def load(tmp_path: Path, text: str) -> str:
    file, out = tmp_path / "profiles.yaml", io.StringIO()
    file.write_text(text, encoding="utf-8")
    call_command("profiles", "load", str(file), stdout=out)
    return out.getvalue()


class TestTheCommand:
    def test_loads_what_it_printed(self, tmp_path):
        save_profile("shop-a", shop_name="Müller & Söhne", account={"ses": {"configuration_set": "a"}})
        save_profile("", copy_to="office@own.test")
        text = printed()
        assert load(tmp_path, text) == "own orders: unchanged\nshop-a: unchanged\n"
        MailProfile.objects.all().delete()
        assert load(tmp_path, text) == "own orders: created\nshop-a: created\n"
        assert printed() == text

    def test_prints_and_loads_the_published_texts(self, tmp_path):
        save_profile("shop-a")
        more = Key("", "and one more item", "and %(counter)s more items", 1)
        publish_texts({READY: "Bald.", AFTER: "Bis **bald**\n\nAnna"}, locale="de", source="shop-a")
        publish_texts({more: "plus {counter}", Key("e-mail", "Total"): "Sum"}, event_type="layout")
        text = printed()
        assert text.startswith("- source: ''\n  texts:\n    layout:\n      en:\n      - sentence: and one")
        assert "        place: after\n" in text.replace("- place", "  place") and "Bis **bald**" in text
        assert load(tmp_path, text) == "shop-a: unchanged\n"
        publish_texts({READY: "Sofort."}, locale="de", source="shop-a")
        publish_texts({READY: "Soon."})
        assert load(tmp_path, text) == (
            "order.paid, en: withdrawn\nshop-a: unchanged\norder.paid, de, shop-a: version 3 published\n"
        )
        assert printed() == text
        assert EmailTextVersion.objects.get(number=3).published_by == "profiles load"
        assert load(tmp_path, "[]") == (
            "layout, en: withdrawn\norder.paid, de, shop-a: withdrawn\nshop-a: deleted\n"
        )
        assert printed() == "[]\n"

    def test_loads_the_example_of_the_guide(self, tmp_path, settings):
        settings.ORDER_SOURCES = ["my-shop"]
        guide = (settings.BASE_DIR / "docs" / "guides" / "shops.md").read_text(encoding="utf-8")
        example = guide.split("```yaml\n")[1].split("```")[0]
        assert load(tmp_path, example) == "my-shop: created\norder.paid, en, my-shop: version 1 published\n"
        assert printed() == example

    def test_a_new_version_replaces_the_draft_and_equal_texts_keep_it(self, tmp_path):
        save_profile("shop-a")
        place = {"source": "shop-a", "event_type": "order.paid", "language": "de"}
        publish_texts({READY: "Bald."}, locale="de", source="shop-a")
        text = printed()

        def write_draft() -> EmailText:
            seen_at = EmailText.objects.get().edited_at.isoformat()
            entries = make_entries({READY: "Morgen."}, language="de")
            return save_draft(**place, entries=entries, username="ann", seen_at=seen_at)

        draft = write_draft()
        assert load(tmp_path, text) == "shop-a: unchanged\n" and printed() == text
        assert EmailText.objects.get().sentences == draft.sentences
        assert "version 2 published" in load(tmp_path, text.replace("Bald.", "Sofort."))
        (entry,) = EmailText.objects.get().sentences
        assert entry["text"] == "Sofort."

    def test_changes_and_deletes_as_the_file_says(self, tmp_path):
        save_profile("shop-a")
        save_profile("shop-b")
        (document,) = [part for part in printed().split("- ") if "source: shop-a" in part]
        changed = f"- {document}".replace("The shop-a", "Tea")
        assert load(tmp_path, changed) == "shop-a: changed\nshop-b: deleted\n"
        assert MailProfile.objects.get().shop_name == "Tea"

    def test_loads_a_file_twice_whose_source_is_empty_without_quotes(self, tmp_path):
        save_profile("")
        text = printed().replace("source: ''", "source:")
        assert text != printed()
        assert load(tmp_path, text) == "own orders: unchanged\n"

    def test_refuses_a_file_that_is_not_utf_8(self, tmp_path):
        file = tmp_path / "profiles.yaml"
        file.write_bytes("- {source: shop-a, shop_name: Müller}".encode("latin-1"))
        with pytest.raises(CommandError, match="not UTF-8"):
            call_command("profiles", "load", str(file))

    def test_empties_what_the_file_leaves_out(self, tmp_path):
        save_profile("shop-a", copy_to="office@shop-a.test", account={"ses": {"configuration_set": "a"}})
        text = "".join(
            line for line in printed().splitlines(True) if line.startswith(("- ", "  from", "  sh", "  post"))
        )
        assert load(tmp_path, text) == "shop-a: changed\n"
        profile = MailProfile.objects.get()
        assert (profile.copy_to, profile.url, profile.account) == ("", "", {})

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("{", "not YAML"),
            ("source: shop-a", "must be a list"),
            ("- {source: shop-a, colour: red}", "shop-a: from_email"),
            ("- {source: shop-a, color: red}", "color is unknown"),
            ("- {source: shop-a, account: {mailgun: {stream: x}}}", "mailgun.stream is unknown"),
            ("- {source: shop-a, account: [mailgun]}", "account must have"),
            ("- {source: shop-c}", "shop-c: source"),
            ("- {source: shop-a}\n- {source: shop-a}", "two profiles"),
            ("- {source: ''}\n- {source: }", "two profiles"),
            ("- {source: shop-a, 1: x, color: red}", "1 is unknown"),
            ("- {source: shop-a, account: {mailgun: {1: x}}}", "mailgun.1 is unknown"),
            ("- {source: '', texts: []}", "every shop: texts: write names and values"),
            ("- {source: '', texts: {order.lost: {}}}", "order.lost has no e-mail. Use layout, order.can"),
            ("- {source: '', texts: {order.paid: {xx: []}}}", "xx is no language. Use en, de, fr, es"),
            ("- {source: '', texts: {order.paid: {de: {}}}}", "order.paid, de: write a list"),
            ("- {source: '', texts: {order.paid: {de: [x]}}}", "order.paid, de: write names"),
            (
                "- {source: '', texts: {order.paid: {de: [{text: 1, place: after}]}}}",
                "has a text, and",
            ),
            ("- {source: '', texts: {order.paid: {de: [{text: x, sentence: y}]}}}", "it has no 'y'"),
            ("- {source: '', texts: {order.paid: {de: [{text: '{y}', place: after}]}}}", "{y} is no variab"),
            ('- {source: "", texts: {order.paid: {de: [{text: "\\u202e", place: after}]}}}', "U.202E"),
        ],
    )
    def test_refuses_a_file_with_a_mistake_whole(self, tmp_path, text, why):
        save_profile("shop-b")
        with pytest.raises(CommandError, match=why):
            load(tmp_path, text)
        assert MailProfile.objects.get().source == "shop-b"
