"""Templates are checked at the start, and a shop replaces single files with its own."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from notifications.rendering import check_templates, render_email
from orders.events import EMAILS

CONTEXT = {"reference": "A-1", "currency": "EUR", "total_amount": 4200}


@pytest.fixture
def replacements(tmp_path, settings):
    """Use a folder of a shop's own files; return a function that writes one."""
    *others, emails = settings.TEMPLATES
    settings.EMAIL_TEMPLATES_DIR = str(tmp_path)
    settings.TEMPLATES = [*others, emails | {"DIRS": [tmp_path, *emails["DIRS"][-1:]]}]

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    return write


def test_it_accepts_the_templates_as_they_are():
    check_templates(declared=EMAILS)


def test_it_refuses_a_declared_email_without_templates():
    with pytest.raises(ImproperlyConfigured, match=r"no order\.lost/body\.html, order\.lost/body\.txt"):
        check_templates(declared=[*EMAILS, "order.lost"])


def test_it_refuses_templates_that_no_event_declares():
    with pytest.raises(ImproperlyConfigured, match=r"order\.refunded belongs to no event"):
        check_templates(declared=[name for name in EMAILS if name != "order.refunded"])


def test_a_file_of_the_shop_replaces_one_and_leaves_the_others(replacements):
    replacements(
        "order.paid/subject.txt", "{{ shop_name }}: {{ total_amount }} for {{ reference }}, thank you"
    )
    check_templates(declared=EMAILS)
    mail = render_email(event_type="order.paid", locale="en", context=CONTEXT)
    assert mail.subject == "Example Shop: €42.00 for A-1, thank you"
    assert "we received your payment" in mail.body_text
    assert mail.subject in mail.body_html


def test_a_file_of_the_shop_may_extend_the_one_that_it_replaces(replacements):
    replacements(
        "_layout.html",
        '{% extends "_layout.html" %}{% block colour %}#123456{% endblock %}'
        "{% block heading %}Hi <{{ reference }}>{% endblock %}",
    )
    check_templates(declared=EMAILS)
    mail = render_email(event_type="order.placed", locale="de", context=CONTEXT | {"reference": "<b>"})
    assert "&lt;b&gt;" in mail.body_html and "<b>" not in mail.body_html


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("order.payed/subject.txt", "Paid", r"no order\.payed/subject\.txt that a file could replace"),
        ("order.paid/subject.txt", "{% if %}", r"order\.paid/subject\.txt does not compile"),
        ("order.paid/subject.txt", "{{ a|shout }}", r"order\.paid/subject\.txt does not compile.*shout"),
        ("order.paid/body.txt", '{% extends "_lost.txt" %}', r"order\.paid cannot be rendered.*_lost"),
        ("_order.html", "{% for %}", r"_order\.html does not compile"),
    ],
)
def test_it_refuses_a_file_of_the_shop_that_could_not_work(replacements, name, text, sentence):
    replacements(name, text)
    with pytest.raises(ImproperlyConfigured, match=sentence):
        check_templates(declared=EMAILS)


def test_it_ignores_the_hidden_files_of_editors_and_volumes(replacements):
    replacements("..2026_11_21/subject.txt", "{% if %}")
    replacements(".DS_Store", "x")
    check_templates(declared=EMAILS)
