"""Texts that people read: what is dropped, what counts as empty, and errors that name what nobody sees."""

from __future__ import annotations

import re
import sys
import unicodedata
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from rest_framework.exceptions import ValidationError

from notifications.models import MailProfile
from notifications.profile_form import form_of
from orders.bodies import OrderBody
from runtime.texts import has_visible, name_invisible, one_line
from tests.kit.words import NotAnAddress, formatted_address, read_address
from web.api.fields import WebAddress

pytestmark = pytest.mark.django_db

BLANKS = "\u3164\u2800\u00ad\u115f\ufe0f"
ORDER: dict[str, Any] = {
    "user_id": "01234567-89ab-cdef-0123-456789abcdef",
    "email": "ann@example.com",
    "total_amount": 100,
}
ITEM = {"sku": "a", "name": "Mug", "quantity": 1, "unit_amount": 100}


def test_a_text_of_formats_and_fillers_alone_is_empty():
    """Compare with the categories of Python's Unicode data, which has no list of default ignorables."""
    hidden = {"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"}
    visible_formats = {"\u0600", "\u06dd", "\u070f", "\u08e2", "\U000110bd"}  # signs that enclose digits
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) not in hidden:
            continue
        if unicodedata.name(character, "").startswith(("ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN")):
            continue
        assert one_line(character) == "", hex(code)
    assert all(map(has_visible, visible_formats))
    assert not any(map(has_visible, BLANKS)) and one_line(BLANKS) == ""


@pytest.mark.parametrize("blank", BLANKS)
def test_an_address_has_no_name_that_nobody_sees(blank):
    assert formatted_address(name=blank, recipient_email="a@b.example") == "a@b.example"


@pytest.mark.parametrize("blank", BLANKS)
def test_an_optional_text_may_be_invisible_and_a_required_one_may_not(blank):
    OrderBody(data={**ORDER, "name": blank, "reference": blank}).is_valid(raise_exception=True)
    with pytest.raises(ValidationError, match=rf"invisible character \(U\+{ord(blank):04X}\)"):
        OrderBody(data={**ORDER, "items": [{**ITEM, "name": blank}]}).is_valid(raise_exception=True)


@pytest.mark.parametrize("text", ["Shop\u200f", "\u202eShop", "\u3164"])
def test_an_error_names_the_invisible_character(text):
    code = next(f"U+{ord(character):04X}" for character in text if not character.isascii())
    wanted = f"Contains an invisible character ({code}). Remove it."
    assert name_invisible(text) == wanted
    form = form_of({"source": "", "from_email": text, "shop_name": text}, instance=MailProfile())
    assert form.errors["shop_name"] == form.errors["from_email"] == [wanted]
    with pytest.raises(NotAnAddress) as refused:
        read_address(f"{text}@example.com")
    assert str(refused.value) == wanted
    with pytest.raises(CommandError, match=f"^NAME: {re.escape(wanted)}"):
        call_command("tokens", "create", text, "--scope", "all", stdout=StringIO())


def test_an_address_of_the_web_names_the_invisible_character():
    with pytest.raises(ValidationError, match=r"invisible character \(U\+200F\)"):
        WebAddress().run_validation("https://example.com/\u200f")


def test_a_profile_keeps_joiners_and_loses_double_spaces():
    texts = {"source": "", "from_email": "علی‌رضا <a@b.example>", "shop_name": "علی‌رضا  Co"}
    form = form_of(texts, instance=MailProfile())
    form.is_valid()
    assert form.cleaned_data["shop_name"] == "علی‌رضا Co"
    assert form.cleaned_data["from_email"] == "علی‌رضا <a@b.example>"
