"""CSV downloads."""

from __future__ import annotations

import csv
import datetime as dt
import io

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from outbox.admin.shared.csv import csv_lines, csv_response, rows_by_key, safe_cell
from tests.kit.words import CHUNK, Heartbeat


def read(lines):
    return list(csv.reader(io.StringIO(b"".join(lines).decode("utf-8-sig"), newline="")))


@pytest.mark.parametrize("evil", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"])
def test_a_text_that_a_spreadsheet_would_run_is_shown_as_text(evil):
    assert safe_cell(evil) == f"'{evil}"
    assert read(csv_lines(header=["a"], rows=[[evil]]))[1] == [f"'{evil}"]


def test_other_values_stay_what_they_are():
    when = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
    row = ["a=b", -5, 1.5, None, when, True, 'say "hi", twice\nor more', "Größe"]
    assert read(csv_lines(header=[*"abcdefgh"], rows=[row]))[1] == [
        *("a=b", "-5", "1.5", "", "2026-11-01T12:00:00+00:00", "True", 'say "hi", twice\nor more', "Größe")
    ]


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


@pytest.mark.django_db
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_rows_by_key_yields_each_row_once_in_bounded_statements(size):
    Heartbeat.objects.bulk_create(Heartbeat(name=f"beat {number}") for number in range(7))
    with CaptureQueriesContext(connection) as captured:
        names = [row.name for row in rows_by_key(queryset=Heartbeat.objects.all(), size=size)]
    assert names == [f"beat {number}" for number in range(6, -1, -1)]
    assert len(captured) == 7 // size + 1
