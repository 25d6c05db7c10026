"""docs/guides/one-machine.md and docker/compose.yaml, run as written; the suite checks their images."""

from __future__ import annotations

import ipaddress
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from config import roles
from local.machine import PROJECT
from tests.drills import dockerd, engine, images
from tests.kit import kafka
from tests.kit.chart import chart_values

#: The engines that run the page: podman with podman-compose, and Docker with compose.
ENGINES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(module.missing() != "", reason=module.missing() or "nothing is missing"),
    )
    for name, module in (("podman", engine), ("docker", dockerd))
]
#: Everything in them ends with the test, however that ends.
NAMESPACES = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]


def services() -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = yaml.safe_load(images.COMPOSE.read_text())["services"]
    return document


def run_flow(*arguments: str) -> str:
    """Run compose_flow in namespaces of its own; return what it printed."""
    # The shell is process 1: it takes in the orphans that containers leave.
    script = f"{sys.executable} -m tests.drills.compose_flow {' '.join(arguments)}; exit $?"
    with engine.alone():
        images.build()
        images.build_stand_ins(streaming="streaming" in arguments)
        with Path("/proc/self/ns/net").open() as network:
            done = subprocess.run(
                [*NAMESPACES, "sh", "-c", script],
                cwd=PROJECT,
                env=engine.environment() | {dockerd.NETWORK: str(network.fileno())},
                pass_fds=[network.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=1200,
            )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.drill
@pytest.mark.parametrize("name", ENGINES)
def test_the_page_leads_from_an_empty_folder_to_a_first_mail_and_compose_loses_none(name: str) -> None:
    assert run_flow(name).endswith("down --volumes leaves nothing\n")


@pytest.mark.drill
@pytest.mark.parametrize("name", ENGINES)
def test_compose_streams_through_kafka_and_debezium(name: str) -> None:
    kafka.require()
    assert "\nDebezium's row wakes the workers\n" in run_flow(name, "streaming")


def test_compose_runs_each_role_by_its_name() -> None:
    ours = {name: service for name, service in services().items() if service["image"] == "orderpost"}
    commands = {name: service["command"] for name, service in ours.items()}
    assert {role: commands.get(role) for role in roles.commands()} == {
        role: [role] for role in roles.commands()
    }
    for service in ours.values():
        assert service["read_only"] and service["tmpfs"] == ["/tmp"] and service["cap_drop"] == ["ALL"]


def test_one_service_builds_the_image_and_no_other_pulls_it() -> None:
    """podman-compose builds the image of each service that says how, all at the same time."""
    ours = {name: service for name, service in services().items() if service["image"] == "orderpost"}
    assert [name for name, service in ours.items() if "build" in service] == ["migrate"]
    others = {service.get("pull_policy") for name, service in ours.items() if name != "migrate"}
    assert others == {"never"}


def test_the_web_trusts_the_address_that_only_the_proxy_can_have() -> None:
    proxy, web = services()["proxy"], services()["web"]
    assert proxy["profiles"] == ["tls"] and list(proxy["networks"]) == ["proxy"]
    for key in ("read_only", "cap_drop", "security_opt"):
        assert proxy[key] == web[key]
    assert proxy["volumes"][0] == "./proxy/nginx.conf:/etc/nginx/nginx.conf:ro"
    assert all(volume.endswith(":ro") for volume in proxy["volumes"])
    assert all(port.startswith("${PROXY_BIND:-127.0.0.1}:") for port in proxy["ports"])

    addresses = [service["networks"]["proxy"]["ipv4_address"] for service in (proxy, web)]
    (subnet,) = yaml.safe_load(images.COMPOSE.read_text())["networks"]["proxy"]["ipam"]["config"]
    network = ipaddress.ip_network(default_of(subnet["subnet"]))
    address, of_web = (ipaddress.ip_address(default_of(address)) for address in addresses)
    assert address != of_web and {address, of_web} <= set(network.hosts())
    page = (PROJECT / "docs" / "guides" / "one-machine.md").read_text()
    assert f"export HTTPS=on TRUSTED_PROXIES={address}\n" in page
    comments = images.COMPOSE.read_text()
    assert f"this service's address, {address}." in comments and f"If {network} is taken" in comments
    for service in services().values():
        if service["image"] == "orderpost":
            values = {name: default_of(service["environment"][name]) for name in ("HTTPS", "TRUSTED_PROXIES")}
            assert values == {"HTTPS": "off", "TRUSTED_PROXIES": ""}


def default_of(value: str) -> str:
    """Return a value of compose.yaml in which each variable has its default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def test_the_archives_go_to_the_role_that_writes_them_and_where_a_volume_may_be_shared_to_the_worker() -> (
    None
):
    mounting = {
        name for name, service in services().items() if "archive:/archive" in service.get("volumes", [])
    }
    chart = {name for name, role in chart_values()["roles"].items() if role.get("archive")}
    page = (PROJECT / "docs" / "guides" / "production.md").read_text()
    documented = set(re.findall(r"`--volume archive:/archive` for `(\w+)`[^.]* and for `(\w+)`", page)[0])
    assert mounting == documented == {"partitions", "worker"}
    assert chart == {"partitions"} and chart_values()["archive"]["accessModes"] == ["ReadWriteOnce"]
    assert not chart_values()["defaults"]["archive"]


def test_each_image_has_a_registry_and_a_release() -> None:
    pulled = {service["image"] for service in services().values()} - {"orderpost"}
    assert [
        name for name in pulled if not name.startswith(("docker.io/", "quay.io/")) or ":" not in name
    ] == []


def test_the_image_has_every_package_and_the_lock_every_extra() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    copied = (PROJECT / "docker" / "Dockerfile").read_text()
    allowed = (PROJECT / ".dockerignore").read_text().split()
    assert "COPY local " not in copied  # nothing that runs in production imports it
    for package in {*project["tool"]["importlinter"]["root_packages"], "templates"} - {"local"}:
        assert f"COPY {package} {package}\n" in copied and f"!{package}" in allowed
    lock = (PROJECT / "requirements" / "image.txt").read_text()
    extras = project["project"]["optional-dependencies"]
    assert {"kafka", "otel", "s3"} <= set(extras)
    for requirement in [name for names in extras.values() for name in names]:
        name = requirement.partition("[")[0].partition(">")[0].partition("=")[0]
        assert f"\n{name}==" in f"\n{lock}", requirement


def test_make_image_says_what_it_lacks() -> None:
    done = subprocess.run(
        ["make", "image", "ENGINE=no-such-engine"], cwd=PROJECT, capture_output=True, text=True
    )
    assert done.returncode != 0 and "No no-such-engine that works here" in done.stderr
