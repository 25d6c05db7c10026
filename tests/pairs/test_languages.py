"""Any language tag of an order is stored as it is, and its e-mails are in the nearest of our languages."""

from __future__ import annotations

from typing import Any

import pytest

from notifications.content.profiles import from_settings
from notifications.content.rendering import email_language, is_locale
from tests.kit.api import Api, api, assert_problem, make_token, order_body
from tests.kit.events import give, told
from tests.kit.profiles import save_profile
from tests.kit.words import EmailNotification, Order

__all__ = ["api"]  # a fixture

pytestmark = pytest.mark.django_db
GREETINGS = {"en": "Hello Ann,", "de": "Guten Tag Ann,", "fr": "Bonjour Ann,", "es": "Hola, Ann:"}
#: Tags as RFC 5646 shows them, and the language of their e-mails if the profile's is French.
TAGS = {
    "de": "de",
    "de-AT": "de",
    "de_AT": "de",
    "DE-at": "de",
    "de-US": "de",
    "de-CH-1996": "de",
    "de-Latn-DE-1996": "de",
    "de-DE-u-co-phonebk": "de",
    "en-a-bbb-x-a-ccc": "en",
    "en-GB-oed": "en",
    "es-419": "es",
    "pt-BR": "fr",
    "zh-Hant-TW": "fr",
    "zh-cmn-Hans-CN": "fr",
    "sl-rozaj-biske-1994": "fr",
    "hy-Latn-IT-arevela": "fr",
    "crh-Latn": "fr",
    "qaa-Qaaa-QM-x-southern": "fr",
    "x-whatever": "fr",
    "i-klingon": "fr",
    "zh-min-nan": "fr",
    "de-" + "-".join(["abcdefgh"] * 3) + "-abcde": "de",  # of 35 characters
}
NONE = ["", "d", "english", "-de", "de-", "de--AT", "de AT", "de-AT\n", "de-\u00e4", "../de", "de-abcdefghi"]
NONE += ["de-" + "-".join(["abcdefgh"] * 3) + "-abcdef"]


@pytest.fixture(autouse=True)
def _shops(settings: Any) -> None:
    settings.FAST_PATH = False
    settings.ORDER_SOURCES = ["shop-a"]
    for source in ("", "shop-a"):
        save_profile(source, default_locale="fr-CA")


@pytest.mark.parametrize(("tag", "language"), TAGS.items())
def test_a_tag_is_stored_as_it_is_and_rendered_in_the_nearest_language(api, tag, language):
    answer = api.post("/api/v1/orders", order_body(locale=tag, name="Ann")).json()
    assert (answer["locale"], answer["email_language"]) == (tag, language)
    paid = api.post(f"/api/v1/orders/{answer['id']}/pay").json()
    assert (paid["locale"], paid["email_language"]) == (tag, language)
    email = EmailNotification.objects.get(event_type="order.paid")
    assert email.locale == tag and GREETINGS[language] in email.body_text
    assert f'<html lang="{language}' in email.body


@pytest.mark.parametrize(("tag", "language"), TAGS.items())
def test_so_is_that_of_another_systems_order(tag, language):
    answer = Api(make_token()).post("/api/v1/events", told("paid", "A-1", 1, locale=tag)).json()
    assert answer["warnings"] == []
    assert Order.objects.get().locale == tag
    assert GREETINGS[language] in EmailNotification.objects.get().body_text


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_tag_is_refused_by_the_api_and_replaced_in_an_event(api, text):
    assert not is_locale(text)
    assert_problem(api.post("/api/v1/orders", order_body(locale=text)), 400, "validation")
    if "\n" not in text:
        assert give(told("paid", "A-1", 1, locale=text)) == "done"
        order = Order.objects.get()
        assert is_locale(order.locale) and len(order.warnings) == 1


@pytest.mark.parametrize(
    ("default", "language"), [("", "en"), ("pt-BR", "en"), ("es", "es"), ("de-AT", "de")]
)
def test_a_language_that_we_lack_gives_that_of_the_profile_or_english(default, language):
    save_profile("shop-a", default_locale=default)
    assert give(told("paid", "A-1", 1, locale="nl-BE")) == "done"
    assert GREETINGS[language] in EmailNotification.objects.get().body_text
    order = Api(make_token()).get(f"/api/v1/orders/{Order.objects.get().id}").json()
    assert (order["locale"], order["email_language"]) == ("nl-BE", language)


def test_the_list_and_an_order_without_a_locale_have_it_too(api):
    api.post("/api/v1/orders", order_body())
    (order,) = api.get("/api/v1/orders").json()["results"]
    assert (order["locale"], order["email_language"]) == ("fr-CA", "fr")


def test_without_a_profile_it_is_that_of_the_settings():
    assert email_language("pt-BR", profile=from_settings()) == "en"


def test_the_preview_begins_with_the_language_and_the_formats_of_the_order(admin_client):
    assert (
        give(told("paid", "A-1", 1, locale="de-AT", totalAmount=123456, currency="EUR", items=[])) == "done"
    )
    path = f"/admin/orders/order/{Order.objects.get().id}/emails/"
    assert '<option value="de" selected>' in admin_client.get(path).content.decode()
    email = EmailNotification.objects.get()
    assert "€\N{NO-BREAK SPACE}1.234,56" in email.body
    assert "€\N{NO-BREAK SPACE}1.234,56" in admin_client.get(f"{path}body/").content.decode()
