"""Lists of bounces and complaints that other providers export."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications import suppression_files
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
    # Its list of blocks has the same columns.
    "sendgrid blocks": (
        "status,reason,email,created\n"
        '550,"550 blocked using zen.spamhaus.org",a@example.com,1700000000\n'
        "5.0.0,Too old,b@example.com,1700000000\n"
        "550,550 The IP has no PTR record,c@example.com,1700000000\n"
        "550,550 Message blocked,d@example.com,1700000000\n"
        '550,"550 SC-001 Unfortunately, messages were not sent",e@example.com,1700000000\n'
        "550,550 5.7.1 unauthenticated mail is prohibited,f@example.com,1700000000\n"
        ",error dialing remote address,g@example.com,1700000000\n"
        "550,550 recipient rejected by policy,h@example.com,1700000000\n"
        "554,554 delivery error: mailbox unknown,gone@example.com,1700000000\n",
        {"gone": "hard_bounce"},
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


def test_bad_lines_are_named_and_the_others_count(tmp_path, capsys):
    text = "address,code,error\n,550,x\nSECRET,550,x\na@example.com,550,no such user\nb@example.com\n"
    said = load(tmp_path, text, capsys=capsys)
    assert "1 addresses are suppressed now" in said
    assert "Left out: 2 without a usable address (in 2, 3)." in said and "SECRET" not in said
    assert "Left out: 1 without all of their columns (in 5)." in said


def test_a_last_line_that_is_short_is_named_after_a_thousand_others(tmp_path, capsys):
    lines = [f"u{number}@example.com,HardBounce" for number in range(1000)]
    text = "\n".join(["EmailAddress,SuppressionReason", *lines, "last@example.com"])
    said = load(tmp_path, text, capsys=capsys)
    assert "1,000 addresses are suppressed now" in said
    assert "Left out: 1 without all of their columns (in 1002)." in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        (
            '[{"email":"a@example.com","status":"5.1.1","reason":"x","n":' + "9" * 5000 + "}]",
            "thousands of digits",
        ),
        (
            "address,code,error\n" + "a@example.com,550,no such user\n" * 1001 + 'b@example.com,"',
            "in line|columns",
        ),
        (b"address,code,error\n" + b"a@example.com,550,no such user\n" * 1001 + b"\xff,550,x\n", "UTF-8"),
        (
            "address,code,error\n" + "a@example.com,550,no such user\n" * 1001 + "x" * 200_000 + ",550,x\n",
            "line 1003 is longer than 100,000 characters",
        ),
    ],
)
def test_nothing_is_stored_of_a_file_that_cannot_be_read_to_its_end(tmp_path, capsys, text, words):
    try:
        said = load(tmp_path, text, capsys=capsys)
    except CommandError as error:
        assert re.search(words, str(error)) and "example.com" not in str(error)
        assert not Suppression.objects.exists()
    else:  # Python reads an open quote at the end as an empty text
        assert re.search(words, said)


def test_a_file_with_too_many_bytes_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(suppression_files, "MOST_CSV_BYTES", 10)
    with pytest.raises(CommandError, match=r"A CSV file has at most 10 bytes\. Split it\."):
        load(tmp_path, FILES["sendgrid bounces"][0], capsys=capsys)


def test_a_reason_stays_and_an_address_in_another_case_is_the_same(tmp_path, capsys):
    suppress([SuppressionReason("a@example.com", Suppression.Reason.MANUAL)])
    load(
        tmp_path,
        "address,code,error\nA@EXAMPLE.com,550,no such user\nB@example.com,5.1.1,x\nb@example.com,5.1.1,x\n",
        capsys=capsys,
    )
    assert sorted(Suppression.objects.values_list("reason", flat=True)) == ["hard_bounce", "manual"]


def test_a_large_list_is_read_in_batches(tmp_path, capsys):
    lines = "".join(f"u{number}@example.com,550,no such mailbox\n" for number in range(5_000))
    tracemalloc.start()
    with CaptureQueriesContext(connection) as statements:
        said = load(tmp_path, "address,code,error\n" + lines, "--dry-run", capsys=capsys)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "5,000 addresses would be suppressed" in said
    assert len(statements) == 5 and most < 3_000_000, most
