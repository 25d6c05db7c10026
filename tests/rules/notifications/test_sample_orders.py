"""The samples enter every branch of the project's files: the list of sentences and the start need it."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.template import engines
from jinja2 import FileSystemLoader, nodes

from notifications.content.profiles import from_settings
from notifications.content.sentences import record
from notifications.content.template_files import make_environment, our_folder
from tests.kit.words import SAMPLE, render_email


def branches_not_entered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the file, line and part of each branch and loop of a folder that no sample enters."""
    made = make_environment(loader=FileSystemLoader(folder))
    left: set[str] = set()

    def entered(place: str, value: object = "") -> object:
        left.discard(place)
        return value

    parse = made._parse

    def parse_and_mark(source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = parse(source, name, filename)
        for node in list(tree.find_all((nodes.If, nodes.For, nodes.CondExpr))):
            for part in ("expr1", "expr2", "body", "else_"):
                place = f"{name}:{node.lineno} {part} {len(left)}"  # a line may have several
                match getattr(node, part, None):
                    case nodes.Expr() as inner:
                        setattr(node, part, call(place, inner))
                    case [*inner] if inner:
                        getattr(node, part).insert(0, nodes.Output([call(place)]))
                    case _:
                        continue
                left.add(place)
        tree.set_environment(made)
        return tree

    monkeypatch.setattr(made, "_parse", parse_and_mark)
    made.globals["entered"] = entered
    for name in made.list_templates():
        if not name.startswith("orderpost/"):
            made.get_template(name)
    everything = set(left)
    monkeypatch.setattr(engines["emails"], "env", made)
    record(made)
    # The profile decides a few branches, and no sample does.
    usual = from_settings()
    for profile in (
        dataclasses.replace(usual, logo_url="https://b.example/b.png"),
        dataclasses.replace(usual, url=""),
    ):
        render_email(event_type="order.paid", locale="en", context=SAMPLE, profile=profile)
    assert len(everything) > 100  # the branches were found
    return left


def call(place: str, *values: Any) -> nodes.Call:
    return nodes.Call(nodes.Name("entered", "load"), [nodes.Const(place), *values], [], None, None)


def test_the_samples_enter_every_branch(monkeypatch):
    assert branches_not_entered(our_folder(), monkeypatch) == set()


@pytest.mark.parametrize(
    ("name", "before", "after", "place"),
    [
        ("_order.html", "", "{% if currency == 'ISK' %}x{% endif %}", "_order.html:1 body"),
        (
            "order.paid/body.txt",
            "{% trans %}We are now getting your order ready.{% endtrans %}",
            "{% if lang %}We{% else %}x{% endif %}",
            "body.txt:4 else_",
        ),
        ("_layout.html", "{{ changed_at }}", "{{ lang if lang else 'x' }}", "_layout.html:27 expr2"),
        ("order.shipped/subject.txt", "{% elif", "{% elif name == 'X' %}x{% elif", "subject.txt:1 body"),
    ],
)
def test_an_added_branch_without_a_sample_is_found(tmp_path, monkeypatch, name, before, after, place):
    folder = shutil.copytree(our_folder(), tmp_path / "emails")
    source = (folder / name).read_text()
    changed = source.replace(before, after, 1)
    assert changed != source
    (folder / name).write_text(changed)
    (place_left,) = branches_not_entered(folder, monkeypatch)
    assert f"{place} " in place_left
