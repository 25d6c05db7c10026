"""The acts of the buttons on a connection's page, in the transaction that also records the act.

Each returns a sentence, and raises `ShopRefusal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from django.contrib import messages
from django.http import HttpRequest

from runtime.database.transactions import after_commit
from shop_connections import process
from shop_connections.compare import repair, try_key
from shop_connections.models import ShopConnection
from shop_connections.platforms import platform_of
from shop_connections.services import (
    ShopRefusal,
    answer_parents,
    ask_comparison,
    change_state,
    choose_channel,
    replace_secret,
    save_key,
    set_statuses,
    take_address,
)

State = ShopConnection.State
Act = Callable[[HttpRequest, ShopConnection], str]


def make_another_secret(request: HttpRequest, shop: ShopConnection) -> str:
    replace_secret(id=shop.id, offered=request.POST.get("offered", ""), seen=request.POST.get("seen", ""))
    return f"Made another secret. Now {platform_of(shop).setup.reconnect}."


def save_new_key(request: HttpRequest, shop: ShopConnection) -> str:
    key, secret = (request.POST.get(name, "").strip() for name in ("key", "key_secret"))
    save_key(id=shop.id, key=key, secret=secret)
    return "Saved the key of the shop's API."


def try_new_key(request: HttpRequest, shop: ShopConnection) -> None:
    """Say if the shop refuses its new key, which is committed. It stays: the shop may only be down."""
    if problem := try_key(shop):
        messages.warning(request, f"The key is saved, but there is a problem. {problem}")
    else:
        messages.success(request, "The key is saved and works: the shop's orders can be read.")


def _choose_channel(request: HttpRequest, shop: ShopConnection) -> str:
    channel = request.POST.get("channel", "").strip()
    choose_channel(id=shop.id, channel=channel)
    return f"Only orders of the channel {channel} count." if channel else "Orders of all channels count."


def _save_statuses(request: HttpRequest, shop: ShopConnection) -> str:
    """Store what each status means. A line without a word, or without an answer, is none."""
    words, means = request.POST.getlist("word"), request.POST.getlist("means")
    meanings = {
        word: "" if meaning == IGNORED else meaning
        for word, meaning in zip(words, means, strict=False)
        if word.strip() and meaning != UNANSWERED
    }
    count = set_statuses(id=shop.id, meanings=meanings)
    after_commit(process.wake)
    again = f" {count} post{'s are' if count != 1 else ' is'} processed now." if count else ""
    return f"Saved what the statuses mean.{again}"


#: Answers of a select that are no status.
IGNORED, UNANSWERED = "ignored", ""


def _compare(request: HttpRequest, shop: ShopConnection) -> str:
    ask_comparison(id=shop.id)
    return "Comparing the shop's orders with those here. The page shows how far it is."


def _repair(request: HttpRequest, shop: ShopConnection) -> str:
    if shop.state == State.OFF:
        raise ShopRefusal("The connection is off, and nothing of it is processed.")
    count = repair(source=shop.source)
    after_commit(process.wake)
    return f"{count} order{'s are' if count != 1 else ' is'} processed now."


def _answer_parents(request: HttpRequest, shop: ShopConnection) -> str:
    are = request.POST["action"]
    answer_parents(id=shop.id, are=are)
    vendors = "vendors' parts, of which only parcels and refunds are told"
    return f"Orders below another order are {'orders of their own' if are == 'own' else vendors}."


def _take_address(request: HttpRequest, shop: ShopConnection) -> str:
    address, is_copy = request.POST.get("address", ""), request.POST["action"] == "copy"
    count = take_address(id=shop.id, address=address, is_copy=is_copy)
    after_commit(process.wake)
    how = "are left out, as those of a copy" if is_copy else "are the shop's, too"
    return f"Posts from {address} {how}. {count} of them {'are' if count != 1 else 'is'} processed now."


def _change_state(request: HttpRequest, shop: ShopConnection) -> str:
    changed = change_state(id=shop.id, to=request.POST["action"])
    return "Turned off." if changed.state == State.OFF else "Back in its trial."


#: By the value of the pressed button: those of platforms' steps, and all.
STEP_ACTS: Mapping[str, Act] = {
    "secret": make_another_secret,
    "channel": _choose_channel,
    "key": save_new_key,
}
ACTS: Mapping[str, Act] = {
    **STEP_ACTS,
    "statuses": _save_statuses,
    "compare": _compare,
    "repair": _repair,
    **dict.fromkeys(("own", "vendors"), _answer_parents),
    **dict.fromkeys(("address", "copy"), _take_address),
    **dict.fromkeys((State.TRIAL, State.OFF), _change_state),
}
