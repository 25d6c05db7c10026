"""A published template is found before the files, is compiled once, and gives way when it fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.db import DatabaseError, connection, connections
from django.test.utils import CaptureQueriesContext

from notifications import published
from notifications.models import EmailTemplate, EmailTemplateVersion
from notifications.profiles import from_settings
from notifications.rendering import TemplateFailed
from tests.kit.templates import publish_template, renew
from tests.kit.words import SAMPLE, render_email

pytestmark = pytest.mark.django_db


class AtOnce:
    """A thread that runs in its caller."""

    def __init__(self, *, target, args, **_) -> None:
        self.start = lambda: target(*args)


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """Begin as a process that has compiled nothing, and note failures in this thread."""
    published._compiled.clear()
    published._failed.clear()
    monkeypatch.setattr(published, "threading", SimpleNamespace(Thread=AtOnce))
    monkeypatch.setattr(connections["default"], "close", lambda: None)


def subject(locale: str = "en", source: str = "", **context) -> str:
    profile = from_settings()
    if source:
        profile = type(profile)(source, "a@b.example", "", "Shop B", "B street", "https://b.example")
    mail = render_email(
        event_type="order.paid", locale=locale, context={**SAMPLE, **context}, profile=profile
    )
    return mail.subject


def test_the_most_specific_template_is_used():
    assert subject("de") == "Zahlung für Ihre Bestellung A-10234 erhalten"
    publish_template(subject="all")
    assert subject("de") == subject("en", "shop-b") == "all"
    publish_template(subject="de", locale="de")
    assert (subject("de-AT"), subject("en"), subject("de", "shop-b")) == ("de", "all", "de")
    publish_template(subject="b", source="shop-b")
    assert (subject("de", "shop-b"), subject("de")) == ("b", "de")
    publish_template(subject="b de", source="shop-b", locale="de")
    assert (subject("de", "shop-b"), subject("fr", "shop-b"), subject("it")) == ("b de", "b", "all")


def test_it_may_extend_our_files_translates_and_escapes():
    publish_template(
        body_html='{% extends "_layout.html" %}{% block message %}<b>{{ name }}</b>'
        "{% trans %}We are now getting your order ready.{% endtrans %}{% endblock %}",
        body_text='{% extends "orderpost/order.paid/body.txt" %}'
        "{% block message %}{{ super() }}!{% endblock %}",
    )
    mail = render_email(event_type="order.paid", locale="de", context={**SAMPLE, "name": "<i>"})
    assert "<b>&lt;i&gt;</b>Wir bereiten Ihre Bestellung nun für Sie vor." in mail.body_html
    assert "Wir bereiten Ihre Bestellung nun für Sie vor.!" in mail.body_text


def test_the_email_names_its_version():
    assert render_email(event_type="order.paid", locale="en", context=SAMPLE).template_version is None
    version = publish_template()
    assert render_email(event_type="order.paid", locale="en", context=SAMPLE).template_version == version.id


def test_a_version_that_fails_gives_way_to_the_one_before_it_and_then_to_the_files():
    first = publish_template(subject="one")
    second = publish_template(subject="{{ items[0].lost }}")
    mail = render_email(event_type="order.paid", locale="en", context=SAMPLE)
    assert (mail.subject, mail.template_version) == ("one", first.id)
    second.refresh_from_db()
    assert second.failed_at is not None
    assert second.failure == "UndefinedError (subject.txt, line 1)"
    publish_template(subject="{{ items[0].lost }}")
    mail = render_email(event_type="order.paid", locale="en", context=SAMPLE)
    assert (mail.subject, mail.template_version) == ("Payment received for your order A-10234", None)


def test_a_version_that_does_not_compile_is_noted_and_skipped():
    version = publish_template(subject="{% if %}")
    assert subject() == "Payment received for your order A-10234"
    version.refresh_from_db()
    assert version.failure.startswith("TemplateSyntaxError (subject.txt")


def test_a_failure_has_no_value_of_the_order():
    version = publish_template(subject="{{ name - 1 }}")
    assert subject(name="Secret Name").startswith("Payment")
    version.refresh_from_db()
    assert version.failure == "TypeError (subject.txt, line 1)"


def test_a_loop_that_grows_with_an_order_ends_and_the_files_are_used():
    version = publish_template(
        subject="{% for a in items %}{% for b in items %}{% for c in items %}"
        "{% for d in items %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}"
    )
    assert subject() == ""
    lines = [{"name": "n", "quantity": 1, "unit_amount": 1, "line_amount": 1}] * 20
    assert subject(items=lines) == "Payment received for your order A-10234"
    version.refresh_from_db()
    assert version.failure.startswith("LimitReached")


def test_if_the_file_fails_too_the_error_is_that_of_the_file():
    publish_template(subject="{{ lost }}")
    with pytest.raises(TemplateFailed, match=r"order\.paid/subject\.txt"):
        render_email(event_type="order.paid", locale="en", context={"currency": "EUR"})


def test_a_withdrawn_template_is_not_used():
    publish_template(subject="mine")
    EmailTemplate.objects.update(published=None)
    renew()
    assert subject() == "Payment received for your order A-10234"


def test_a_process_reads_and_compiles_a_version_once_and_rendering_reads_nothing(monkeypatch):
    compiled: list[str] = []
    compile_part = published.compile_part

    def compile_noted(environment, *, name, **options):
        compiled.append(name)
        return compile_part(environment, name=name, **options)

    monkeypatch.setattr(published, "compile_part", compile_noted)
    publish_template(subject="one")
    assert len(compiled) == 3
    publish_template(event_type="order.placed", subject="two")
    EmailTemplate.objects.update(subject="a draft")
    renew()
    assert len(compiled) == 6
    with CaptureQueriesContext(connection) as captured:
        assert (subject(), len(compiled)) == ("one", 6)
    assert captured.captured_queries == []


def test_versions_are_forgotten_when_two_newer_ones_exist():
    ids = [publish_template(subject=str(number)).id for number in range(4)]
    assert set(published._compiled) == set(ids[-2:])


def test_a_failure_that_cannot_be_written_is_noted_at_the_next_one(monkeypatch):
    version = publish_template(subject="{{ items[0].lost }}")

    def refuse(**_):
        raise DatabaseError("away")

    with monkeypatch.context() as patch:
        patch.setattr(EmailTemplateVersion.objects, "filter", refuse)
        subject()
    version.refresh_from_db()
    assert version.failed_at is None
    subject()
    version.refresh_from_db()
    assert version.failed_at is not None
