"""The API answers and writes what release 0.1.0 did, but for the differences that are named."""

from __future__ import annotations

import datetime as dt
import difflib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from outbox.models import ApiToken
from tests.golden import cases, cases_of_input, cases_of_races
from tests.golden.differences import DIFFERENCES, as_of_now
from tests.golden.recorder import Recorder

FILE = Path(__file__).with_name("answers.json")
RECORDING = os.environ.get("GOLDEN") == "record"
SECTIONS = [*cases.SECTIONS, *cases_of_input.SECTIONS, *cases_of_races.SECTIONS]
EVERY_MAIL = ["placed", "paid", "confirmed", "completed", "cancelled", "refunded", "part_refunded"]


def golden() -> Any:
    return json.loads(FILE.read_text()) if FILE.exists() else {"columns": None, "sections": {}}


def make_tokens() -> dict[str, str]:
    """Make tokens of all kinds, one without a row among them."""
    past = timezone.now() - dt.timedelta(hours=1)
    kinds: dict[str, dict[str, Any]] = {
        "all": {},
        "other": {},
        "reader": {"scopes": ["orders:read"]},
        "writer": {"scopes": ["orders:write"]},
        "mailer": {"scopes": ["notifications:read", "notifications:write"]},
        "expired": {"expires_at": past},
        "revoked": {"revoked_at": past},
    }
    secrets = {name: ApiToken.new_secret() for name in [*kinds, "unknown"]}
    for name, fields in kinds.items():
        secret, values = secrets[name], {"scopes": list(ApiToken.SCOPES)} | fields
        ApiToken.objects.create(name=name, prefix=secret[:12], digest=ApiToken.digest_of(secret), **values)
    return secrets


def shown(entry: Any) -> list[str]:
    return json.dumps(entry, indent=1, ensure_ascii=False).splitlines()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_each_request_is_answered_and_stored_as_before(
    live_server: Any, settings: Any, section: Callable[[Recorder], None]
) -> None:
    settings.FAST_PATH = False
    if section is cases.mails:
        settings.NOTIFY_ON = [f"order.{event}" for event in EVERY_MAIL]
    known = golden()
    port, whole = live_server.thread.port, section is cases.mails
    recorder = Recorder(port=port, tokens=make_tokens(), columns=known["columns"], whole=whole)
    recorder.keep(cases.USER, cases.NOBODY)
    try:
        section(recorder)
    finally:
        recorder.close()
    if RECORDING:
        known["columns"] = recorder.columns
        known["sections"][section.__name__] = recorder.entries
        FILE.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
        return
    expected = as_of_now(section.__name__, known["sections"][section.__name__])
    found = json.loads(json.dumps(recorder.entries))
    assert list(found) == list(expected)
    for name in found:
        if found[name] != expected[name]:
            diff = difflib.unified_diff(
                shown(expected[name]), shown(found[name]), "before", "now", lineterm=""
            )
            pytest.fail(f"{section.__name__}, {name}:\n" + "\n".join(diff))


def test_every_named_difference_is_one() -> None:
    sections = golden()["sections"]
    for name, entries in sections.items():
        as_of_now(name, entries)
    assert [difference for difference in DIFFERENCES if not difference.found] == []
    assert sum(map(len, sections.values())) > 400
