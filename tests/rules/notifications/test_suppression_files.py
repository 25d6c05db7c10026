"""Lists of bounces and complaints that other providers export."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications.suppressions import suppression_of
from tests.kit.words import Suppression, SuppressionReason, suppress

pytestmark = pytest.mark.django_db(transaction=True)
Written = tuple[str, str, str]

FILES: dict[str, tuple[str, dict[str, str]]] = {
    "sendgrid bounces": (
        "status,reason,email,created\n"
        '5.1.1,"550 5.1.1 no such user, sorry",gone@example.com,1700000000\n'
        "5.2.2,552 mailbox full,full@example.com,1700000000\n"
        '4.0.0,"450 try later",later@example.com,1700000000\n'
        ",unable to get mx info,nomx@example.com,1700000000\n",
        {"gone": "hard_bounce", "nomx": "hard_bounce"},
    ),
    "sendgrid spam reports": (
        "ip,email,created\n10.0.0.1,angry@example.com,1700000000\n",
        {"angry": "complaint"},
    ),
    "sendgrid api": (
        json.dumps(
            [{"created": 1, "email": "gone@example.com", "reason": "550 5.1.1 no", "status": "5.1.1"}]
        ),
        {"gone": "hard_bounce"},
    ),
    "ses": (
        json.dumps(
            {
                "SuppressedDestinationSummaries": [
                    {"EmailAddress": "Gone@example.com", "Reason": "BOUNCE", "LastUpdateTime": "2026-01-01"},
                    {
                        "EmailAddress": "angry@example.com",
                        "Reason": "COMPLAINT",
                        "LastUpdateTime": "2026-01-01",
                    },
                ],
                "NextToken": "x",
            }
        ),
        {"gone": "hard_bounce", "angry": "complaint"},
    ),
    "postmark": (
        json.dumps(
            {
                "Suppressions": [
                    {
                        "EmailAddress": f"{name}@example.com",
                        "SuppressionReason": reason,
                        "Origin": "Recipient",
                    }
                    for name, reason in (
                        ("gone", "HardBounce"),
                        ("angry", "SpamComplaint"),
                        ("left", "ManualSuppression"),
                    )
                ]
            }
        ),
        {"gone": "hard_bounce", "angry": "complaint"},
    ),
    "mailgun bounces": (
        "\ufeffaddress,code,error,created_at\r\n"
        "gone@example.com,550,No such mailbox,Fri 21 Oct 2011 11:02:55 GMT\r\n"
        "full@example.com,552,5.2.2 full,Fri 21 Oct 2011 11:02:55 GMT\r\n",
        {"gone": "hard_bounce"},
    ),
    "mailgun complaints": (
        json.dumps(
            {"items": [{"address": "angry@example.com", "count": 2, "created_at": "x"}], "paging": {}}
        ),
        {"angry": "complaint"},
    ),
}
UNKNOWN = {
    "mailgun unsubscribes": 'address,tags,created_at\nleft@example.com,"[""*""]",x\n',
    "sendgrid unsubscribes": "email,created\nleft@example.com,1700000000\n",
    "sendgrid group": json.dumps([{"email": "left@example.com", "group_id": 1, "created_at": 1}]),
    "nothing": "",
    "only a header": "status,reason,email,created\n",
    "an empty list": "[]",
    "no list": '{"items": {}}',
    "broken": '[{"email": ',
    "other words": "Ann,Bo\n1,2\n",
}


def load(folder: Path, text: str | bytes, *options: str, capsys: Any) -> str:
    path = folder / "list"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    call_command("suppressions", "load", str(path), *options)
    out: str = capsys.readouterr().out
    return out


@pytest.mark.parametrize("name", FILES)
def test_bounces_and_complaints_are_suppressed_and_nobody_else(tmp_path, capsys, name):
    text, expected = FILES[name]
    said = load(tmp_path, text, "--dry-run", capsys=capsys)
    assert not Suppression.objects.exists()
    assert f"{len(expected)} addresses would be suppressed, 0 were before." in said
    said = load(tmp_path, text, capsys=capsys)
    provider = name.split()[0]
    for person, reason in expected.items():
        row = suppression_of(f"{person}@example.com")
        assert row is not None and (row.reason, row.provider) == (reason, provider)
    assert Suppression.objects.count() == len(expected)
    assert "example.com" not in said
    assert f"0 addresses are suppressed now, {len(expected)} were before." in load(
        tmp_path, text, capsys=capsys
    )


@pytest.mark.parametrize("name", UNKNOWN)
def test_any_other_file_is_refused_with_what_is_known(tmp_path, capsys, name):
    with pytest.raises(CommandError, match=r"Use an export of SendGrid|cannot be read") as error:
        load(tmp_path, UNKNOWN[name], capsys=capsys)
    assert "example.com" not in str(error.value)
    assert not Suppression.objects.exists()


def test_a_file_that_is_missing_or_in_another_encoding_is_refused(tmp_path, capsys):
    with pytest.raises(CommandError, match="No such file"):
        call_command("suppressions", "load", str(tmp_path / "missing"))
    with pytest.raises(CommandError, match="UTF-8"):
        load(tmp_path, "address,code,error\nä@example.com,550,x\n".encode("latin-1"), capsys=capsys)


def test_a_line_without_a_usable_address_is_named_and_the_others_count(tmp_path, capsys):
    text = "address,code,error\n,550,x\nSECRET,550,x\na@example.com,550,x\nb@example.com\n"
    said = load(tmp_path, text, capsys=capsys)
    assert "2 addresses are suppressed now" in said
    assert "Left out: 2 without a usable address (in 2, 3)." in said and "SECRET" not in said


def test_a_reason_stays_and_an_address_in_another_case_is_the_same(tmp_path, capsys):
    suppress([SuppressionReason("a@example.com", Suppression.Reason.MANUAL)])
    load(
        tmp_path,
        "address,code,error\nA@EXAMPLE.com,550,x\nB@example.com,550,x\nb@example.com,550,x\n",
        capsys=capsys,
    )
    assert sorted(Suppression.objects.values_list("reason", flat=True)) == ["hard_bounce", "manual"]


def test_a_large_list_is_read_in_batches(tmp_path, capsys):
    lines = "".join(f"u{number}@example.com,550,no such mailbox\n" for number in range(20_000))
    tracemalloc.start()
    with CaptureQueriesContext(connection) as statements:
        said = load(tmp_path, "address,code,error\n" + lines, "--dry-run", capsys=capsys)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "20,000 addresses would be suppressed" in said
    assert len(statements) == 20 and most < 20_000_000
