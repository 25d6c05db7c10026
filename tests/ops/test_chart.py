"""The Helm chart says what the project says, and helm makes objects of it that Kubernetes takes."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator

from config import roles
from local.machine import PROJECT
from tests.kit import warm
from tests.kit.alerts import RULES
from tests.kit.chart import CHART, Object, chart_values, documented_settings
from tests.kit.needs import needs
from tests.kit.waiting import PATIENCE
from tests.kit.words import PROBES

TEMPLATES = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
SECRET = re.compile(r".*(_KEY|_SECRET|_PASSWORD|_TOKEN|_BASIC_AUTH|DATABASE_URL|EMAIL_URL|KAFKA_OPTIONS)$")
FOREIGN_SECRETS = {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"}
OLDEST = "1.30"  # Chart.yaml's kubeVersion
#: The tested sets of values: the smallest that a shop needs, everything, and other choices.
SETS = sorted((CHART / "ci").glob("*-values.yaml"))
#: Kinds of objects that have no schema in Kubernetes.
FOREIGN_KINDS = {"PodMonitor", "PrometheusRule", "ScaledObject"}
needs_helm = needs("helm", shutil.which("helm"))
each_set = pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
SMALLEST, FULL, HPA = (CHART / "ci" / f"{name}-values.yaml" for name in ("smallest", "full", "hpa"))
SECRETS = {
    "SECRET_KEY": "s" * 50,
    "PRIVACY_KEY": "p" * 50,
    "CONNECTION_KEY": "c" * 50,
    "DATABASE_URL": "postgresql://app:x@db.example.com/orderpost",
    "DIRECT_DATABASE_URL": "postgresql://app:x@db.example.com/orderpost",
    "REDIS_URL": "redis://valkey.example.com:6379/0",
    "EMAIL_URL": "smtp://orderpost:x@mail.example.com",
    "METRICS_TOKEN": "scrape-me",
    "SENDGRID_API_KEY": "SG.x",
    "SENDGRID_WEBHOOK_VERIFICATION_KEY": "",
}


def schema() -> Object:
    """Return the schema of the chart's values."""
    document: Object = json.loads((CHART / "values.schema.json").read_text())
    return document


def helm(
    verb: str, *arguments: str, values: Path | None = None, chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    files = ["--values", str(values)] if values else []
    # A helm that was built from source renders for Kubernetes 1.20 unless told otherwise.
    name = ["orderpost", "--kube-version", "1.30.0"] if verb == "template" else []
    return subprocess.run(
        ["helm", verb, *name, str(chart), *files, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@functools.cache
def rendered(values: Path, *arguments: str) -> list[Object]:
    """Return the objects that helm makes of a set of values."""
    done = helm("template", *arguments, values=values)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """Return the objects of a kind, by their name without the release's name."""
    return {
        re.sub("^(orderpost|post)-", "", manifest["metadata"]["name"]): manifest
        for manifest in objects
        if manifest["kind"] == kind
    }


def pods(objects: list[Object]) -> dict[str, Object]:
    """Return the spec of every pod that would run, by the name of its object."""
    specs = {}
    for manifest in objects:
        if manifest["kind"] == "Pod":
            specs["test"] = manifest["spec"]
        elif manifest["kind"] == "CronJob":
            template = manifest["spec"]["jobTemplate"]["spec"]["template"]
            specs[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template["spec"]
        elif "template" in manifest.get("spec", {}):
            template = manifest["spec"]["template"]
            specs[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template["spec"]
    return specs


def environment(objects: list[Object], pod: Object) -> dict[str, str]:
    """Return the variables of a pod's container. The last one of a name wins, as in Kubernetes."""
    (container,) = pod["containers"]
    configs = {
        manifest["metadata"]["name"]: manifest["data"] or {}
        for manifest in objects
        if manifest["kind"] == "ConfigMap"
    }
    variables: dict[str, str] = {}
    for source in container.get("envFrom", []):
        variables |= configs[source["configMapRef"]["name"]]
    for variable in container.get("env", []):
        variables[variable["name"]] = variable.get("value", "")
    return variables


def mounts(pod: Object) -> dict[str, Object]:
    """Return the volumes of a pod by their path in its container."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}


def test_each_role_is_one_of_the_images():
    values = chart_values()
    assert values["roles"].keys() == roles.commands().keys() - {"migrate", "cdc"}
    for name, role in {**values["roles"], "migrate": values["migrate"]}.items():
        assert role["args"] == [name]


def test_each_role_is_probed_by_the_command_of_the_image():
    assert "[python, manage.py, health, %s]" in TEMPLATES
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    assert 'CMD ["python", "manage.py", "health"]' in dockerfile
    # A probe over HTTP needs a request thread, and all of them wait during an outage of the database.
    assert set(re.findall(r"httpGet: \{path: (\S+),", TEMPLATES)) == {"/readyz"} <= PROBES.keys()


def test_a_secret_is_no_setting_and_only_some_roles_get_the_owners_url():
    names = documented_settings() | {"AWS_REGION", "OTEL_SERVICE_NAME", *FOREIGN_SECRETS}
    owners = chart_values()["secrets"]["owner"]["key"]
    for name in names:
        is_secret = bool(SECRET.match(name)) or name in FOREIGN_SECRETS
        assert is_accepted({"settings": {name: "x"}}) is not is_secret, name
        assert is_accepted({"roles": {"worker": {"settings": {name: "x"}}}}) is not is_secret, name
        assert is_accepted({"secrets": {"keys": [name]}}) is (name != owners), name


def is_accepted(values: Object) -> bool:
    return bool(Draft7Validator(schema()).is_valid(values))


def test_templates_and_values_name_only_documented_settings():
    named = {name.removesuffix("_FILE") for name in re.findall(r"\{name: ([A-Z][A-Z0-9_]+),", TEMPLATES)}
    named |= set(re.findall(r"\bsettings\.([A-Z][A-Z0-9_]+)", TEMPLATES, flags=re.IGNORECASE))
    values = chart_values()
    named |= values["settings"].keys() | set(values["secrets"]["keys"])
    for role in values["roles"].values():
        named |= role.get("settings", {}).keys()
    assert {"DATABASE_URL", "EMAIL_READ_TIMEOUT", "PROMETHEUS_MULTIPROC_DIR"} <= named
    assert named - documented_settings() == set()


def test_roles_are_scaled_by_metrics_that_exist():
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text()
    scaled = {
        name: role["autoscaling"] for name, role in chart_values()["roles"].items() if "autoscaling" in role
    }
    assert scaled.keys() == {"web", "worker", "relay", "consumer"}
    for name, scaling in scaled.items():
        if "metric" not in scaling:
            assert scaling["cpu"], name
            continue
        row = next(row for row in page.splitlines() if row.startswith(f"| `{scaling['metric']}` "))
        labels = set(re.findall(r"`(\w+)`", row.split("|")[2]))
        assert scaling["labels"].keys() <= labels, name
        assert set(re.findall(r"\borderpost_\w+", scaling["query"])) == {scaling["metric"]}, name
        assert set(re.findall(r"(\w+)=\"", scaling["query"])) == scaling["labels"].keys(), name


@needs_helm
@each_set
def test_helm_finds_nothing_to_complain_about(values):
    done = helm("lint", "--strict", values=values)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@each_set
def test_kubernetes_takes_every_object(values):
    objects = rendered(values)
    newest = kubernetes_validate.latest_version()
    for version in (OLDEST, newest) if values == FULL else (newest,):
        for manifest in objects:
            if manifest["kind"] not in FOREIGN_KINDS:
                kubernetes_validate.validate(manifest, version, strict=True)
    assert len(objects) > 10
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects]
    assert len(names) == len(set(names))
    assert max(len(name) for _, name in names) <= 63


@needs_helm
def test_a_wrong_object_is_refused():
    deployment = next(manifest for manifest in rendered(SMALLEST) if manifest["kind"] == "Deployment")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment | {"spec": {"replica": 1}}, OLDEST, strict=True)


@needs_helm
@each_set
def test_a_selector_finds_the_pods_of_its_own_role_and_no_other(values):
    objects = rendered(values)
    labels = {
        name: manifest["spec"]["template"]["metadata"]["labels"]
        for name, manifest in of_kind(objects, "Deployment").items()
    }
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        for name, manifest in of_kind(objects, kind).items():
            selector = manifest["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            assert [role for role, has in labels.items() if wanted <= has.items()] == [name], (kind, name)


@needs_helm
@each_set
def test_every_pod_is_locked_up(values):
    specs = pods(rendered(values))
    assert {"web", "worker", "partitions", "test"} <= specs.keys()
    for name, pod in specs.items():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] == 10001, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }, name
        if name != "test":
            assert "/tmp" in mounts(pod), name


@needs_helm
@each_set
def test_every_pod_fits_a_quota_and_the_nodes_that_the_defaults_name(values):
    defaults = yaml.safe_load(values.read_text()).get("defaults", {})
    for name, pod in pods(rendered(values)).items():
        resources = pod["containers"][0].get("resources", {})
        assert resources.keys() == {"requests", "limits"}, name
        assert resources["requests"].keys() == {"cpu", "memory"}, name
        assert resources["limits"]["memory"], name
        assert pod.get("tolerations") == defaults.get("tolerations"), name


@needs_helm
@each_set
def test_a_secret_is_a_file_and_never_a_variable(values):
    objects = rendered(values)
    for name, pod in pods(objects).items():
        variables = environment(objects, pod)
        assert variables.keys() & SECRETS.keys() == set(), name
        files = {key: value for key, value in variables.items() if key.endswith("_FILE")}
        for path in files.values():
            folder, _, file = path.rpartition("/")
            assert file in [item["path"] for item in mounts(pod)[folder]["secret"]["items"]], (name, path)
        assert len(files) >= 4 or name == "test", name


def having(secret: str, objects: list[Object]) -> dict[str, set[str]]:
    """Return the pods that mount a Secret, each with the variables that name a file of it."""
    variables_by_pod = {}
    for name, pod in pods(objects).items():
        names = [volume.get("secret", {}).get("secretName") for volume in pod.get("volumes", [])]
        folder = f"/run/secrets/{secret.removeprefix('orderpost-')}/"
        variables = {key for key, value in environment(objects, pod).items() if value.startswith(folder)}
        if variables or secret in names:
            variables_by_pod[name] = variables
    return variables_by_pod


@needs_helm
def test_the_owners_url_reaches_only_migrations_and_partitions():
    assert having("orderpost-owner", rendered(FULL)) == {
        "migrate": {"DATABASE_URL_FILE"},
        "partitions": {"PARTITION_DATABASE_URL_FILE"},
    }


@needs_helm
def test_a_secret_that_each_role_would_get_cannot_be_the_owners_url():
    done = helm("template", "--set", "secrets.keys={SECRET_KEY,PARTITION_DATABASE_URL}", values=SMALLEST)
    assert done.returncode != 0 and "secrets.keys.1" in done.stderr.replace("/", "."), done.stderr


@needs_helm
@pytest.mark.parametrize(("values", "role"), [(FULL, "worker"), (SMALLEST, "migrate")])
def test_the_settings_start_with_the_environment_of_a_pod(values, role, tmp_path):
    objects = rendered(values)
    variables = environment(objects, pods(objects)[role])
    for name in SECRETS.keys() & {name.removesuffix("_FILE") for name in variables}:
        (tmp_path / name).write_text(SECRETS[name])
        variables[f"{name}_FILE"] = str(tmp_path / name)
    code = (
        "from config import settings as s;"
        "print(s.DATABASES['default']['HOST'], s.EVENT_STREAM_LENGTH, s.EMAIL_CONCURRENCY, s.ALLOWED_HOSTS)"
    )
    variables |= {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    done = warm.run([sys.executable, "-c", code], environment=variables)
    concurrency = 16 if (values, role) == (FULL, "worker") else 32
    assert done.stdout == f"db.example.com 1000000 {concurrency} ['orders.example.com']\n", done.stderr


@needs_helm
def test_one_more_role_is_a_deployment_like_the_others():
    consumer, other = (of_kind(rendered(FULL), "Deployment")[name] for name in ("consumer", "cdc"))
    text = yaml.safe_dump(other).replace("consume_cdc", "consume_events").replace("cdc", "consumer")
    assert yaml.safe_load(text)["spec"]["template"] == consumer["spec"]["template"]


@needs_helm
@each_set
def test_each_role_that_stays_is_restarted_by_its_own_health_alone(values):
    objects = rendered(values)
    for name, deployment in of_kind(objects, "Deployment").items():
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe"):
            command = container[probe]["exec"]["command"]
            assert command[:3] == ["python", "manage.py", "health"] and len(command) == 4, name
            assert "httpGet" not in container[probe]
        assert ("readinessProbe" in container) == (name == "web")


@needs_helm
def test_a_role_with_a_schedule_is_a_cron_job_that_ends():
    objects = rendered(HPA)
    job = of_kind(objects, "CronJob")["partitions"]
    (container,) = pods(objects)["partitions"]["containers"]
    assert container["args"] == [*chart_values()["roles"]["partitions"]["args"], "--once"]
    assert "livenessProbe" not in container
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert "partitions" not in of_kind(objects, "Deployment")


@needs_helm
def test_what_is_scaled_has_no_fixed_number_of_replicas():
    for values, kind in ((FULL, "ScaledObject"), (HPA, "HorizontalPodAutoscaler"), (SMALLEST, None)):
        objects = rendered(values)
        scaled = set(of_kind(objects, kind)) if kind else set()
        fixed = {
            name
            for name, manifest in of_kind(objects, "Deployment").items()
            if "replicas" in manifest["spec"]
        }
        assert scaled == ({"web", "worker", "relay", "consumer"} if kind else set())
        assert scaled & fixed == set() and {"beat"} <= fixed


@needs_helm
def test_a_budget_stands_where_two_replicas_run_and_never_blocks_a_drain_of_one():
    assert of_kind(rendered(SMALLEST), "PodDisruptionBudget").keys() == {"web", "worker", "relay", "consumer"}
    assert of_kind(rendered(HPA), "PodDisruptionBudget").keys() == {"web", "worker", "consumer"}


@needs_helm
def test_replicas_are_spread_without_regard_to_those_that_they_replace():
    spread = rendered(HPA, "--set", "defaults.topologySpread={kubernetes.io/hostname}")
    for name, pod in pods(spread).items():
        keys = None if name == "partitions" else ["pod-template-hash"]  # the pods of a CronJob have no hash
        for constraint in pod.get("topologySpreadConstraints", []):
            assert constraint.get("matchLabelKeys") == keys, name
    # The scheduler ignores a node without one of the labels, and often no node has a zone.
    assert not any("topologySpreadConstraints" in pod for pod in pods(rendered(SMALLEST)).values())


@needs_helm
def test_a_role_stops_after_what_is_in_flight():
    default = chart_values()["defaults"]["terminationGracePeriodSeconds"]
    for name, manifest in of_kind(rendered(SMALLEST), "Deployment").items():
        assert manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == default, name
    done = helm("template", "--set", f"settings.EMAIL_READ_TIMEOUT={default}", values=SMALLEST)
    assert done.returncode != 0 and "terminationGracePeriodSeconds" in done.stderr


@needs_helm
def test_a_changed_setting_starts_the_pods_anew():
    def checksums(objects):
        return {
            name: manifest["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for name, manifest in of_kind(objects, "Deployment").items()
        }

    before, after = (
        checksums(rendered(SMALLEST)),
        checksums(rendered(SMALLEST, "--set", "settings.MAX_RETRIES=5")),
    )
    assert len(before) == 7 and before.keys() == after.keys()
    assert before.items() & after.items() == set()


@needs_helm
def test_the_rules_are_those_that_are_tested_and_link_to_the_docs():
    shipped = yaml.safe_load(RULES.read_text())
    (rule,) = of_kind(rendered(SMALLEST, "--set", "metrics.rules.enabled=true"), "PrometheusRule").values()
    assert rule["spec"] == shipped
    (linked,) = of_kind(rendered(FULL), "PrometheusRule").values()
    with_docs = json.dumps(shipped).replace(
        "{{ $externalLabels.docs }}", "https://docs.example.com/orderpost"
    )
    assert linked["spec"] == json.loads(with_docs) != shipped


@needs_helm
def test_a_package_has_the_rules_themselves_and_not_a_link(tmp_path):
    subprocess.run(
        ["helm", "package", str(CHART), "--destination", str(tmp_path)], check=True, timeout=PATIENCE
    )
    (package,) = tmp_path.glob("orderpost-*.tgz")
    with tarfile.open(package) as archive:
        file = archive.extractfile("orderpost/files/alerts.yml")
        assert file is not None and file.read() == RULES.read_bytes()


@needs_helm
def test_a_chart_that_has_lost_the_rules_is_refused(tmp_path):
    chart = shutil.copytree(CHART, tmp_path / "chart", ignore=shutil.ignore_patterns("alerts.yml"))
    done = helm("template", "--set", "metrics.rules.enabled=true", values=SMALLEST, chart=chart)
    assert done.returncode != 0 and "files/alerts.yml is missing" in done.stderr


@needs_helm
def test_nobody_is_told_of_a_role_that_is_not_meant_to_run():
    (rule,) = of_kind(rendered(HPA), "PrometheusRule").values()
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    gone = next(alert["expr"] for alert in alerts if alert.get("alert") == "ProcessGone")
    assert 'role="worker"' in gone and 'role="relay"' in gone
    assert 'role="standby"' not in gone and 'role="partitions"' not in gone


@needs_helm
@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("settings.email_rate_limit=5", "email_rate_limit"),
        ("settings.SECRET_KEY=x", "SECRET_KEY"),
        ("settings.SENDGRID_API_KEY=x", "SENDGRID_API_KEY"),
        ("roles.worker.replica=5", "replica"),
        ("secrets.keys={SECRET_KEY,PARTITION_DATABASE_URL}", "secrets.keys.1"),
        ("metrics.podMonitr.enabled=true", "podMonitr"),
        ("autoscaling.kind=vpa", "autoscaling.kind"),
    ],
)
def test_a_misspelt_or_dangerous_value_is_refused(argument, reason):
    done = helm("template", "--set", argument, values=SMALLEST)
    # Helm 3 names a place as `secrets.keys.1`, helm 4 as `/secrets/keys/1`.
    assert done.returncode != 0 and reason in done.stderr.replace("/", "."), done.stderr


@needs_helm
def test_the_values_of_the_readme_name_the_keys_of_its_secret(tmp_path):
    page = (CHART / "README.md").read_text()
    secret, owner = re.findall(
        r"create secret generic .*?\n( *--from-literal.*?)\n +(?:kubectl|```)", page, re.DOTALL
    )
    values = tmp_path / "values.yaml"
    values.write_text(textwrap.dedent(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]))
    secrets = yaml.safe_load(values.read_text())["secrets"]
    assert re.findall(r"literal=(\w+)=", secret) == secrets["keys"]
    assert re.findall(r"literal=(\w+)=", owner) == [chart_values()["secrets"]["owner"]["key"]]
    assert of_kind(rendered(values), "Ingress")


@needs_helm
def test_a_host_that_the_web_would_refuse_is_refused():
    done = helm("template", "--set", "ingress.host=other.example.com", values=FULL)
    assert done.returncode != 0 and "ALLOWED_HOSTS" in done.stderr


@needs_helm
@pytest.mark.parametrize(
    ("hosts", "warns"), [("orders.example.com", True), ("orders.example.com, 127.0.0.1", False), ("*", False)]
)
def test_the_notes_name_no_address_that_the_web_would_refuse(hosts, warns, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"settings": {"ALLOWED_HOSTS": hosts}}))
    done = helm("install", "--generate-name", "--dry-run=client", values=values)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    assert "http://127.0.0.1:8000/api/docs" in notes
    assert ("lacks 127.0.0.1" in notes) is warns


@needs_helm
def test_the_ingress_opens_the_api_and_the_webhooks_and_what_is_named():
    def paths(*arguments: str) -> list[str]:
        done = helm("template", *arguments, values=FULL)
        assert done.returncode == 0, done.stderr
        (ingress,) = (
            manifest
            for manifest in yaml.safe_load_all(done.stdout)
            if manifest and manifest["kind"] == "Ingress"
        )
        return [path["path"] for path in ingress["spec"]["rules"][0]["http"]["paths"]]

    assert paths() == ["/api", "/webhooks", "/connect"]
    assert paths("--set", "ingress.paths={/api,/admin,/static}") == ["/api", "/admin", "/static"]
    refused = helm("template", "--set", "ingress.paths={api}", values=FULL)
    assert refused.returncode != 0 and "paths" in refused.stderr


@needs_helm
def test_archives_have_a_claim_that_an_uninstall_keeps_or_a_bucket():
    (claim,) = of_kind(rendered(SMALLEST), "PersistentVolumeClaim").values()
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "/archive" in mounts(pods(rendered(SMALLEST))["partitions"])
    for values in (FULL, HPA):
        assert of_kind(rendered(values), "PersistentVolumeClaim") == {}
    claims = mounts(pods(rendered(HPA))["partitions"])["/archive"]
    assert claims["persistentVolumeClaim"] == {"claimName": "archives"}
    assert "/archive" not in mounts(pods(rendered(FULL))["partitions"])


@needs_helm
def test_prometheus_reaches_every_role_under_the_names_that_the_alerts_use():
    (monitor,) = of_kind(rendered(FULL), "PodMonitor").values()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    for name, manifest in of_kind(rendered(FULL), "Deployment").items():
        template = manifest["spec"]["template"]
        assert wanted <= template["metadata"]["labels"].items(), name
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        assert ports[endpoint["port"]] == int(
            environment(rendered(FULL), template["spec"])["METRICS_PORT"]
        ), name
    assert {relabeling["targetLabel"] for relabeling in endpoint["relabelings"]} == {"job", "role"}
    assert endpoint["honorLabels"] is True
    assert endpoint["authorization"]["credentials"] == {"name": "orderpost", "key": "METRICS_TOKEN"}
