"""Write what is made from the declared conditions and metrics, for `manage.py status --rules`.

- docker/prometheus/alerts.yml: the alerts of the conditions, after `BEGIN`
- docs/guides/alerts.md: each condition's heading, and below it the priority and when the alert fires
- docs/reference/metrics.md: the rows of the tables

A paragraph or row keeps its place on its page. A new one is added at the end, and a person may move it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings

from runtime.conditions import Alert, Condition, Query, declared
from runtime.telemetry.metrics import Declared, declared_metrics

BEGIN = "  # Made from the apps' conditions.py by `manage.py status --rules write`, to the end of the file."
SEVERITIES = {"P1": "critical", "P2": "warning", "P3": "info"}
#: The end of a summary: the subject, if the condition has several.
SUBJECT = "{{ with $labels.subject }}: {{ . }}{{ end }}"
#: A pause silences its alerts until so long after its end. The work that it delayed is late.
GRACE = "15m"
WIDTH = 130


def files() -> Iterator[tuple[Path, str, str]]:
    """Yield the path, the present text and the right text of each file. Raise OSError outside a checkout."""
    made: Mapping[str, Callable[[str], str]] = {
        "docker/prometheus/alerts.yml": with_rules,
        "docs/guides/alerts.md": with_paragraphs,
        "docs/reference/metrics.md": with_rows,
    }
    for name, make in made.items():
        path = Path(settings.BASE_DIR) / name
        text = path.read_text(encoding="utf-8")
        yield path, text, make(text)


def alerts() -> dict[str, tuple[Condition[Any], Alert]]:
    """Return the first condition of each code that has an alert, with this alert."""
    by_code: dict[str, tuple[Condition[Any], Alert]] = {}
    for condition in declared():
        if condition.alert:
            by_code.setdefault(condition.code, (condition, condition.alert))
    return by_code


# --- alerts.yml ---------------------------------------------------------------------------------------------
def with_rules(text: str) -> str:
    """Replace the generated rules."""
    head = text.partition(BEGIN)[0]
    rules = [_missing(), *(_rule(condition, alert) for condition, alert in alerts().values())]
    return f"{head}{BEGIN}\n  - name: orderpost-conditions\n    rules:\n" + "\n".join(rules)


def _rule(condition: Condition[Any], alert: Alert) -> str:
    code, labels = condition.code, f"severity: {SEVERITIES[alert.priority]}, priority: {alert.priority}"
    clauses = [f'max by (code, subject) (orderpost_condition{{code="{code}"}}) > 0']
    if alert.also:
        clauses.append(f"  and on () {alert.also}")
    if part := condition.paused_by:
        clauses.append(f'  unless on () max(max_over_time(orderpost_paused{{part="{part}"}}[{GRACE}])) == 1')
    expr = "".join(f"\n          {clause}" for clause in clauses)
    return f"""\
      - alert: {code}
        expr: |{expr}
        for: {alert.wait}
        labels: {{{labels}}}
        annotations:
          summary: {_quoted(alert.when.removesuffix(".") + SUBJECT)}
          description: {_quoted(f"To do: {condition.do}.{alert.shows}")}
          runbook_url: '{{{{ $externalLabels.docs }}}}/guides/alerts.md#{code.lower()}'
"""


def _missing() -> str:
    """Record the codes that no process exports, though their source answers, for MetricMissing."""
    by_guard: dict[str, list[str]] = {}
    for code, (condition, _) in alerts().items():
        if not condition.source.is_optional:
            is_database = isinstance(condition.source, Query)
            guard = "max(orderpost_database_up) == 1" if is_database else "min(orderpost_broker_up) == 1"
            by_guard.setdefault(guard, []).append(f'absent(orderpost_condition{{code="{code}"}})')
    either, both = "\n            or ", "\n          or "
    parts = [f"({either.join(codes)}) and on () {guard}" for guard, codes in by_guard.items()]
    return f"""\
      - record: orderpost:condition_missing
        expr: |
          {both.join(parts)}
"""


def _quoted(text: str) -> str:
    """Quote a text for YAML.

    >>> print(_quoted("PostgreSQL's"))
    'PostgreSQL''s'
    """
    return "'" + text.replace("'", "''") + "'"


# --- alerts.md ----------------------------------------------------------------------------------------------
def with_paragraphs(text: str) -> str:
    """Replace the lines between a condition's heading and its list, and add missing headings."""
    for code, (condition, alert) in alerts().items():
        lines = textwrap.fill(f"**{alert.priority}.** {alert.when}", WIDTH, break_on_hyphens=False)
        heading = f"### {code}\n"
        if heading not in text:
            before, title, after = text.partition("\n## From an alert")
            text = f"{before}\n{heading}- *Do*: {condition.do}.\n{title}{after}"
        before, _, after = text.partition(heading)
        rest = re.sub(r"\A(?:(?!- ).+\n)*", "", after)
        text = f"{before}{heading}{lines}\n{rest}"
    return text


# --- metrics.md ---------------------------------------------------------------------------------------------
def with_rows(text: str) -> str:
    """Replace the rows of the declared metrics, remove those of others, and add missing rows at the end."""
    rows = {metric.name: _row(metric) for metric in declared_metrics()}
    lines = []
    for line in text.splitlines():
        if match := re.match(r"\| `(orderpost_\w+)` \|", line):
            if match[1] in rows:
                lines.append(rows.pop(match[1]))
        else:
            lines.append(line)
    return "\n".join([*lines, *rows.values()]) + "\n"


def _row(metric: Declared) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {f'{metric.kind} {labels}'.strip()} | {metric.help} |"
