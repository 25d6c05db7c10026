"""`manage.py status --rules` writes what is declared, and keeps what a person wrote around it."""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError, call_command

from local.machine import PROJECT
from operations import rules

PAGES = ["docker/prometheus/alerts.yml", "docs/guides/alerts.md", "docs/reference/metrics.md"]


@pytest.fixture
def checkout(tmp_path, settings):
    settings.BASE_DIR = tmp_path
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text((PROJECT / page).read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("page", "shipped", "changed"),
    [
        (PAGES[0], "for: 15m\n        labels: {severity: info", "for: 5m\n        labels: {severity: info"),
        (PAGES[1], "### OrdersStuck\n**P3.** Orders", "### OrdersStuck\n**P1.** Orders"),
        (PAGES[2], "gauge `part` | 1 during", "gauge `name` | 1 after"),
    ],
)
def test_a_file_that_differs_fails_the_check_and_is_written_again(checkout, page, shipped, changed):
    call_command("status", "--rules", "check")
    text = (checkout / page).read_text()
    head, middle, tail = text.rpartition(shipped)
    assert middle
    (checkout / page).write_text(head + changed + tail)
    with pytest.raises(CommandError, match=page):
        call_command("status", "--rules", "check")
    call_command("status", "--rules", "write")
    assert (checkout / page).read_text() == text


def test_a_row_keeps_its_place_and_a_missing_one_is_added_and_that_of_no_metric_removed():
    text = (PROJECT / PAGES[2]).read_text()
    lines = text.splitlines()
    row = next(line for line in lines if line.startswith("| `orderpost_paused` |"))
    without = text.replace(f"{row}\n", "")
    assert rules.with_rows(f"{row}\n{without}") == f"{row}\n{without}"
    assert rules.with_rows(without) == f"{without}{row}\n"
    assert rules.with_rows(text.replace("## API", "| `orderpost_gone` | gauge | 1 |\n## API")) == text


def test_a_missing_paragraph_is_begun_and_the_rest_of_the_others_stays():
    text = (PROJECT / PAGES[1]).read_text()
    paragraph = re.search(r"### SumsLate\n(.+\n)+\n", text)
    assert paragraph is not None
    begun = rules.with_paragraphs(text.replace(paragraph[0], ""))
    first = paragraph[0].splitlines()[:2]
    assert "\n".join([*first, "- *Do*: check beat and worker.", "", "## From an alert"]) in begun
    assert rules.with_paragraphs(begun) == begun
    assert begun.replace(
        "\n" + "\n".join([*first, "- *Do*: check beat and worker.", ""]), ""
    ) == text.replace(paragraph[0], "")
