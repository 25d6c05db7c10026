"""Known escapes and bombs get a clear error, and the process that meets them ends within its limits."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from django.conf import settings

from notifications import editing
from notifications.models import EmailTemplate
from notifications.profiles import from_settings
from notifications.rendering import show
from notifications.sandboxed import child, trial
from tests.kit.attacks import ATTACKS
from tests.kit.templates import text_of_file
from tests.kit.words import EMAILS, SAMPLE, SAMPLES

PLAIN = {"subject.txt": "Hello", "body.txt": "Hello", "body.html": "<p>Hello</p>"}
#: Outputs that would reach the customer. Only the check finds them.
SENT: Mapping[str, tuple[str, str]] = {
    "script": ("<script>alert(1)</script>", "remove the element script"),
    "handler": ("<p onclick='x()'>", "remove the attribute onclick"),
    "plain link": ("<a href='http://shop.example'>", "Links must be https"),
    "script link": ("<a href=' javascript:alert(1)'>", "Links must be https"),
    "link of a value": ("<a href='{{ reference }}'>", "Links must be https"),
}


def sentences(text: str, *, part: str = "body.html") -> str:
    """Try a text as a draft with one sample, in a process of its own, and return its mistakes."""
    shown = show(locale="en", context=SAMPLE, profile=from_settings())
    tried = editing.try_texts({**PLAIN, part: text}, [shown], SAMPLES, is_checked=True)
    return "; ".join(map(str, tried.mistakes))


@pytest.mark.parametrize("name", [*ATTACKS, *SENT])
def test_an_attack_gets_a_clear_error(name):
    text, expected = {**ATTACKS, **SENT}[name]
    assert expected in sentences(text)


def test_the_attacks_are_many_and_the_memory_of_the_caller_does_not_grow():
    assert len(ATTACKS) > 60
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("repeated text", "a long output", "loops in loops", "power"):
        sentences(ATTACKS[name][0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes


@pytest.mark.parametrize("event_type", EMAILS)
def test_the_text_of_each_file_obeys_the_rules(event_type):
    template = EmailTemplate(event_type=event_type)
    parts = dict(zip(PLAIN, text_of_file(event_type).values(), strict=True))
    assert editing.check(template=template, parts=parts, samples=SAMPLES) == []


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("{{ name|upper }}", "ANNA SCHMIDT"),
        ("{% for item in items %}{{ loop.index }}{{ item.name }}{% endfor %}", "1Ceramic mug2Tea towel"),
        ("{% for i in range(3) %}{{ i % 2 }}{% endfor %}", "010"),
        ("{% if lang[:2] == 'en' and items|length > 1 %}many{% endif %}", "many"),
        ("{{ items[0].quantity + 1 }}", "3"),
        ("{% set hello = 'Hi' %}{{ hello }}", "Hi"),
        ("{{ tracking_url or 'none' }}", "https://parcels.example.com/42"),
        ("{{ reason|default('') if reason is defined else '' }}", "Sold out"),
        ("{% trans n=more_items %}one more{% pluralize %}{{ n }} more{% endtrans %}", "one more"),
        ("{% trans %}100% of {{ name }}{% endtrans %}", "100% of Anna Schmidt"),
        ("<b>{{ '<' }}</b>", "<b>&lt;</b>"),
    ],
)
def test_what_an_email_needs_is_allowed(text, html):
    shown = show(locale="en", context=SAMPLE, profile=from_settings())
    tried = editing.try_texts({**PLAIN, "body.html": text}, [shown], SAMPLES, is_checked=True)
    assert tried.mail is not None, tried.mistakes
    assert tried.mail.body_html == f"{html}\n"


def test_a_mistake_names_its_part_and_line():
    assert sentences("\n\n{{ totl }}").startswith("body.html, line 3: The variable totl is unknown")
    assert sentences("{% if %}", part="subject.txt").startswith("subject.txt, line 1: ")
    assert sentences("{{ subject }}", part="subject.txt").startswith("subject.txt, line 1: The variable")
    assert sentences(" ", part="subject.txt") == "subject.txt: The subject is empty."
    assert sentences(" ", part="body.txt") == "body.txt: This part is empty."


def escaped(python: str) -> subprocess.CompletedProcess[str]:
    """Run a process with the child's limits, as if a draft had escaped from the sandbox."""
    code = f"from notifications.sandboxed import child; child.CPU_SECONDS = 1; child.set_limits()\n{python}"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=60
    )


def test_a_process_that_takes_too_much_memory_or_time_ends():
    assert "MemoryError" in escaped("'a' * 10**9").stderr
    assert escaped("[0 for _ in iter(int, 1)]").returncode != 0
    assert escaped("while True: pass").returncode == -9


@pytest.mark.parametrize(
    "python", ["import os; os.abort()", "print('[')", "import sys; sys.exit(1)", "print('{}' * 10**6 * 3)"]
)
def test_a_process_that_dies_or_answers_nonsense_is_a_mistake(monkeypatch, python):
    monkeypatch.setattr(trial, "COMMAND", (sys.executable, "-c", python))
    assert "It takes too long, or needs too much memory" in sentences("x")


def test_a_process_that_waits_is_killed(monkeypatch):
    monkeypatch.setattr(trial, "COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(trial, "SECONDS", 0.5)
    assert "It takes too long" in sentences("x")


def test_its_process_has_no_secrets(monkeypatch, tmp_path):
    dump = tmp_path / "environment"
    code = f"import os, pathlib; pathlib.Path({str(dump)!r}).write_text(str(dict(os.environ)))"
    monkeypatch.setattr(trial, "COMMAND", (sys.executable, "-c", code))
    sentences("x")
    assert "SECRET" not in dump.read_text() and "DATABASE" not in dump.read_text()


def test_few_drafts_are_rendered_at_once(monkeypatch):
    monkeypatch.setattr(trial, "WAIT_SECONDS", 0.01)
    for _ in range(trial.AT_ONCE):
        assert trial._free.acquire(blocking=False)
    try:
        assert "Try again in a moment" in sentences("x")
    finally:
        for _ in range(trial.AT_ONCE):
            trial._free.release()


def test_the_child_imports_neither_django_nor_settings():
    code = (
        "import sys, notifications.sandboxed.child;"
        "print([name for name in sys.modules if name.partition('.')[0] in ('django', 'config', 'runtime')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=settings.BASE_DIR, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_child_limits_itself_before_it_compiles(monkeypatch, capsys):
    calls: list[str] = []
    monkeypatch.setattr(child, "set_limits", lambda: calls.append("limits"))
    monkeypatch.setattr(child, "answer", lambda job: calls.append("answer") or {})
    with (Path("/dev/null")).open() as _:
        monkeypatch.setattr(sys, "stdin", __import__("io").StringIO("{}"))
        child.main()
    assert calls == ["limits", "answer"]
