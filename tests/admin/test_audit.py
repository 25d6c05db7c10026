"""The audit log, and the files of all lists: each download is logged, and no cell is run."""

from __future__ import annotations

import csv
import datetime as dt
import io

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.kit.acts import acts
from tests.kit.admin import (
    EVENTS,
    LETTERS,
    LOG,
    MAILS,
    ORDERS,
    dead_event,
    dead_letter,
    downloaded,
    listed,
    make_event,
)
from tests.kit.jobs import act
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.people import staff_client
from tests.kit.words import CHUNK, Heartbeat, address_hash
from web.admin.csv import csv_lines, csv_response, rows_by_key

pytestmark = pytest.mark.django_db


class TestTheLog:
    @pytest.fixture(autouse=True)
    def mail(self, admin_client):
        mail = make_mail(status="dead_lettered")
        act(admin_client, "give_up", [mail.id], reason="=1+1")
        assert acts().count() == 1
        return mail

    def test_finds_an_act_by_its_object_and_by_its_person(self, admin_client, mail):
        staff_client(name="other")
        counts = [
            len(listed(admin_client, LOG, q=term))
            for term in (str(mail.id), str(mail.order_id), "admin", "other")
        ]
        assert counts == [1, 1, 3, 1]  # with the logins and the start of the job

    def test_is_narrowed_by_time_and_kind_and_its_file_has_what_the_list_has(self, admin_client, mail):
        for kind, count in (("email", 1), ("copy", 0)):
            for rows in (listed, downloaded):
                assert len(rows(admin_client, LOG, age="1h", kind=kind)) == count
        (row,) = downloaded(admin_client, LOG, q=str(mail.id))
        assert (row["who"], row["subject_id"], row["reason"]) == ("admin", str(mail.id), "'=1+1")
        assert (row["order_id"], row["address"]) == (str(mail.order_id), "127.0.0.1")

    def test_links_a_thing_only_for_whom_may_see_it(self, admin_client, mail):
        viewer = staff_client("view_logentry")
        link = f"{MAILS}{mail.id}/change/"
        assert [link in who.get(LOG).content.decode() for who in (admin_client, viewer)] == [True, False]

    def test_is_deleted_by_nobody(self, admin_client):
        entry = acts().get()
        assert admin_client.post(f"{LOG}{entry.pk}/delete/", {"post": "yes"}).status_code == 403


class TestADownload:
    @pytest.mark.parametrize("path", [ORDERS, MAILS, EVENTS, LETTERS, LOG])
    def test_writes_a_row_in_the_log(self, admin_client, path):
        name = path.removeprefix("/admin/").strip("/").replace("/", ".")
        downloaded(admin_client, path)
        entry = acts().get()
        assert entry.subject == f"list of {name}" and not entry.subject_id
        assert entry.act.startswith("Downloaded as CSV.") and entry.who == "admin"

    @pytest.mark.parametrize(
        ("path", "query", "make"),
        [
            (ORDERS, {"age": "1h"}, lambda: make_order(name="=1+1")),
            (EVENTS, {"state": "dead-lettered"}, lambda: dead_event(last_error="=1+1")),
            (LETTERS, {}, lambda: dead_letter(error="=1+1")),
        ],
    )
    def test_has_the_rows_of_the_list_and_no_formula(self, admin_client, path, query, make):
        row = make()
        make_event()
        (line,) = downloaded(admin_client, path, **query)
        assert line["id"] == str(row.pk) and "'=1+1" in line.values()

    def test_logs_codes_and_ids_and_a_hash_of_anything_else(self, admin_client):
        mail = make_mail()
        for query in (
            {"status": "failed", "since": "2026-11-01", "q": str(mail.id), "p": "1"},
            {"q": " Alice@Example.com", "status": "Alice Smith"},
            {"cause": "Alice Smith", "age": "Smith", "until": "Alice"},
            {"event_type": "order.paid", "provider": "smith"},
        ):
            downloaded(admin_client, MAILS, **query)
        said = list(acts().values_list("act", flat=True))
        assert said[0] == f"Downloaded as CSV. q={mail.id} since=2026-11-01 status=failed"
        hashed = f"hash:{address_hash('alice@example.com')}"
        assert f" q={hashed} " in f"{said[1]} "
        assert said[3].startswith("Downloaded as CSV. event_type=order.paid provider=hash:")
        assert not any(name in text.lower() for text in said for name in ("alice", "smith"))

    def test_that_is_refused_writes_none(self, admin_client):
        client = staff_client("view_order")
        for path in (MAILS, EVENTS, LETTERS, LOG):
            assert client.get(f"{path}csv/").status_code == 403, path
        for path in (MAILS, LOG):
            assert admin_client.get(f"{path}csv/", {"nothing": "x"}).status_code == 400, path
        assert not acts().exists()


def read(row: list[object]) -> list[str]:
    """Return the cells of a row as a spreadsheet reads them."""
    lines = b"".join(csv_lines(header=[str(number) for number in range(len(row))], rows=[row]))
    return list(csv.reader(io.StringIO(lines.decode("utf-8-sig"), newline="")))[1]


def test_a_text_that_a_spreadsheet_would_run_is_shown_as_text():
    evil = ["=1+1", "+1", "-1", "@SUM(A1)", "\t1", "\r1", "\n1", "＝1"]
    assert read([*evil]) == [f"'{text}" for text in evil]


def test_no_part_of_a_text_runs_where_other_characters_separate_cells():
    evil = [
        f"{before}{between}{sign}cmd()"
        for before in ("x;", "x\t", "x\n", "x\r\n", ";", "\t", 'x, "y";')
        for between in ("", " ", '"', "'", ' "')
        for sign in "=+-@＝"
    ]
    file = b"".join(csv_lines(header=["1", "2", "3"], rows=[["id", text, "end"] for text in evil]))
    for separator in ",;\t":
        lines = csv.reader(io.StringIO(file.decode("utf-8-sig"), newline=""), delimiter=separator)
        cells = [cell for line in lines for cell in line]
        assert len(cells) > len(evil)
        assert [cell for cell in cells if cell.lstrip('" ').startswith(tuple("=+-@＝"))] == []


def test_a_semicolon_in_a_sentence_is_not_changed():
    text = "refused; 2 of 3 left; see a=b; (-5); x;y"
    assert read([text]) == [text]


def test_other_values_stay_what_they_are():
    when = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
    row = ["a=b", -5, 1.5, None, when, True, 'say "hi", twice\nor more', "Größe"]
    rest = ("2026-11-01T12:00:00+00:00", "True", 'say "hi", twice\nor more', "Größe")
    assert read(row) == ["a=b", "-5", "1.5", "", *rest]


def test_a_file_leaves_in_chunks_and_reads_no_row_before_it_is_wanted():
    asked = []

    def rows():
        for number in range(3 * CHUNK):
            asked.append(number)
            yield [number]

    answer = csv_response(filename="list", header=["n"], rows=rows())
    assert answer["Content-Disposition"] == 'attachment; filename="list.csv"'
    chunks = iter(answer)
    assert not asked
    next(chunks)
    assert len(asked) == CHUNK
    assert sum(1 for _ in chunks) == 2


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_rows_by_key_yields_each_row_once_in_bounded_statements(size):
    Heartbeat.objects.bulk_create(Heartbeat(name=f"beat {number}") for number in range(7))
    with CaptureQueriesContext(connection) as captured:
        names = [row.name for row in rows_by_key(queryset=Heartbeat.objects.all(), size=size)]
    assert names == [f"beat {number}" for number in range(6, -1, -1)]
    assert len(captured) == 7 // size + 1
