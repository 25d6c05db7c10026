"""`manage.py preview_email`: an e-mail in all languages side by side, as the templates are now."""

from __future__ import annotations

import io
import re
import uuid
from html import unescape
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from orders.events import EMAILS
from tests.factories import make_order


def preview(*arguments: str, tmp_path: Path) -> str:
    out = io.StringIO()
    target = tmp_path / "below" / "mail.html"
    call_command("preview_email", *arguments, "--output", str(target), stdout=out)
    assert out.getvalue().strip() == str(target)
    return target.read_text()


@pytest.mark.parametrize("event", EMAILS)
def test_it_writes_every_language_of_an_example_without_a_database(event, tmp_path):
    page = preview(event, tmp_path=tmp_path)
    frames = [unescape(source) for source in re.findall(r'<iframe sandbox[^>]* srcdoc="([^"]*)"', page)]
    languages = [language for language, _ in settings.LANGUAGES]
    assert [re.search(r'<html lang="(\w+)"', frame)[1] for frame in frames] == languages
    assert len(set(re.findall(r"<h2>(.*?)</h2>", page))) == len(languages)  # the subjects
    assert "<script" not in page


@pytest.mark.django_db
def test_it_takes_an_order_and_one_locale(tmp_path):
    order = make_order(reference="R-88", name="<b>Ann</b>", currency="EUR", status="cancelled")
    page = preview("order.cancelled", "--order", str(order.id), "--locale", "de-AT", tmp_path=tmp_path)
    assert page.count("<iframe") == 1
    assert "R-88" in page and "€\xa0123,45" in page
    assert "<b>Ann" not in page


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["order.lost"], "order.part_refunded"),
        (["order.paid", "--order", str(uuid.uuid4())], "There is no order"),
        (["order.paid", "--order", "x"], "There is no order"),
        (["order.paid", "--locale", "klingon!"], "not a language tag"),
    ],
)
def test_it_says_what_it_does_not_know(arguments, sentence, tmp_path):
    with pytest.raises(CommandError, match=sentence):
        preview(*arguments, tmp_path=tmp_path)


def test_it_writes_below_var_by_default(settings, tmp_path, capsys):
    settings.BASE_DIR = tmp_path
    (tmp_path / "templates").symlink_to(Path(__file__).parents[2] / "templates")
    call_command("preview_email", "order.paid", "--locale", "en")
    assert capsys.readouterr().out.strip() == str(tmp_path / "var" / "preview" / "order.paid.html")
