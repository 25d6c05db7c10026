"""A pytest plugin: skip the tests that need a missing tool, and report skipped tests at the end of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest

#: Each tool, and how to install it.
TOOLS = {
    "chromium": "apt-get install chromium, or set CHROMIUM",
    "docker": "as root, on Debian 13: apt-get install docker.io docker-compose docker-buildx slirp4netns",
    "helm": "go install helm.sh/helm/v4/cmd/helm@latest",
    "keys of providers": "set the variables of tests/live/test_providers.py",
    "ipv6": "sysctl net.ipv6.conf.lo.disable_ipv6=0; the kernel must have IPv6",
    "java and maven": "apt-get install openjdk-17-jre-headless maven",
    "nginx": "apt-get install nginx openssl",
    "otelcol": "apt-get install golang",
    "pgbackrest": "apt-get install faketime, and pgbackrest 2.55 (newer than Debian 12's), or set PGBACKREST",
    "pgbouncer": "apt-get install pgbouncer",
    "podman": "as root: apt-get install podman runc debootstrap netavark iptables golang",
    "prometheus": "apt-get install prometheus",
    "prometheus-alertmanager": "apt-get install prometheus-alertmanager",
    "woocommerce": "apt-get install php-cli, and set LIVE_WORDPRESS to a WordPress with WooCommerce",
    "saleor": "set LIVE_SALEOR to a checkout of Saleor, with a .venv of its requirements (Python 3.12)",
    "network namespaces": "apt-get install iproute2; the kernel must allow them",
}


def reason(tool: str, details: str = "") -> str:
    """Return the reason for a skip, which `sentence` recognizes."""
    assert tool in TOOLS, tool
    return f"NEEDS {tool}" + (f": {details}" if details else "")


def needs(tool: str, tool_path: object) -> pytest.MarkDecorator:
    """Skip a test unless its tool was found."""
    return pytest.mark.skipif(not tool_path, reason=reason(tool))


def sentence(reasons: Iterable[str]) -> tuple[str, list[str]]:
    """Return one line with the missing tools of all skips, and the reasons of the other skips."""
    tools, others = Counter[str](), []
    for reason in reasons:
        if (match := re.match(r"NEEDS ([^:]+)", reason)) and match[1] in TOOLS:
            tools[match[1]] += 1
        else:
            others.append(reason)
    if not tools:
        return "", others
    named = "; ".join(f"{name} for {count} ({TOOLS[name]})" for name, count in sorted(tools.items()))
    return f"{tools.total()} tests were skipped because a tool is missing: {named}", others


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    if not reports:
        return
    reasons = {report.nodeid: why(report) for report in reports}
    line, others = sentence(reasons.values())
    terminalreporter.section("skipped")
    if line:
        terminalreporter.line(line)
    for text, count in sorted(Counter(others).items()):
        terminalreporter.line(f"{count} skipped: {text}")
    if config.option.markexpr == "drill":  # each is a rehearsal that was not done
        for name in sorted(reasons):
            terminalreporter.line(f"skipped drill: {name}")


def why(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason for a skip."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
