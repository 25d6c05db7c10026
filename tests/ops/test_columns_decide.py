"""Nothing decides by texts that were written for people: the table has a column for each such fact."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from local.machine import PROJECT
from tests.kit.packages import PACKAGES, files_of

#: Columns, and keys of stored JSON, with words for people. Only tests compare them.
WORDS = {"last_error", "warnings"}
#: By module, what it does with the answers of providers, which no column can have.
EXPLAIN_ANSWERS = {
    "notifications/providers/causes.py": "explains them",
    "notifications/failure_causes.py": "groups them",
    "notifications/changes/settle.py": "compares them with the refusal of an account",
}
#: SQL that compares such a column, or takes it apart.
_SQL = re.compile(
    rf"(?:{'|'.join(WORDS)})\s*(?:=\s*'[^']|<>\s*'[^']|!=|~|LIKE|ILIKE|IN\s*\()"
    rf"|(?:starts_with|substring|regexp_\w+|position|md5|left)\s*\(\s*(?:\w+\.)?(?:{'|'.join(WORDS)})"
)
_STRING_TESTS = {"startswith", "endswith", "find", "index", "partition", "split", "match", "search", "count"}


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the columns with words whose value an expression reads."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr in WORDS:
            yield part.attr
        elif isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant):
            yield from WORDS.intersection([part.slice.value])


def _saves_a_write(call: ast.Call, tree: ast.Module) -> bool:
    """Return whether the call only leaves out the rows that have the words which are written next."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "exclude":
        return False
    words = ", ".join(map(ast.unparse, call.keywords))
    return f".exclude({words}).update({words})" in ast.unparse(tree)


def decisions(source: str) -> list[str]:
    """Return the expressions that decide by such words. Whether there are any words is no decision."""
    tree, lines = ast.parse(source), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(_names(node)):
            lines.append(ast.unparse(node))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _STRING_TESTS and any(_names(node)):
                lines.append(ast.unparse(node))
            for keyword in node.keywords:
                column, _, lookup = (keyword.arg or "").partition("__")
                is_filter = isinstance(node.func, ast.Attribute) and node.func.attr in ("filter", "exclude")
                if column in WORDS and (lookup or is_filter) and not _saves_a_write(node, tree):
                    lines.append(ast.unparse(node))
        elif isinstance(node, ast.Match) and any(_names(node.subject)):
            lines.append(ast.unparse(node.subject))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.search(node.value):
            lines.append(node.value)
    return lines


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_decides_by_words_for_people(package):
    for path in files_of(package):
        name = str(path.relative_to(PROJECT))
        if name not in EXPLAIN_ANSWERS and "/migrations/" not in name:
            assert decisions(path.read_text()) == [], name


@pytest.mark.parametrize(
    "source",
    [
        'email.last_error.startswith("too old")',
        'if "restored" in email.last_error: pass',
        'rows.filter(last_error__startswith="x")',
        'rows.exclude(last_error="")',
        'any(line["text"] == CORRECTED for line in order["warnings"] if order["warnings"] != [])',
        "sql = \"WHERE last_error LIKE 'not sent:%'\"",
        'sql = "SELECT md5(last_error)"',
        're.search("x", email.last_error)',
    ],
)
def test_it_would_notice(source):
    assert decisions(source)


def test_the_exceptions_read_answers_alone():
    """Each of them looks at what ended the e-mail first."""
    for name in EXPLAIN_ANSWERS:
        assert re.search(r"ended_by", (PROJECT / name).read_text()), name
