"""A run names the tools that it missed in one line, however many tests needed them."""

from __future__ import annotations

from tests.kit.needs import reason, sentence


def test_each_missing_tool_is_named_once_with_its_tests_and_how_to_install_it():
    line, others = sentence([reason("helm")] * 3 + ["no checkout of git"] + [reason("podman", "wants root")])
    assert line == (
        "4 tests were skipped because a tool is missing:"
        " helm for 3 (go install helm.sh/helm/v4/cmd/helm@latest);"
        " podman for 1 (as root: apt-get install podman runc debootstrap netavark iptables golang)"
    )
    assert others == ["no checkout of git"]


def test_without_a_missing_tool_it_says_nothing():
    assert sentence(["no checkout of git"]) == ("", ["no checkout of git"])
