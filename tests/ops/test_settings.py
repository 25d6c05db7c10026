"""A bad setting stops every process with a sentence that names it, and a file may hold each value.

A variable that looks like a setting and is not one stops a deployment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from config import settings as shipped
from config.database_url import parse_archive, parse_database
from config.unknown import find_unknown
from local.machine import PROJECT, failed_part
from tests.kit import warm
from tests.kit.certificates import make_authority
from tests.kit.chart import documented_settings
from tests.kit.waiting import PATIENCE
from tests.kit.words import declarations


def start(
    code: str = "import django; django.setup()", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run what every process runs first, in a process of its own."""
    settings = {"DJANGO_SETTINGS_MODULE": "config.settings"} | environment
    return warm.run([sys.executable, "-c", code], environment=os.environ | settings)


def refusal(**environment: str) -> str:
    """Return the sentence that stops the start."""
    done = start(**environment)
    assert done.returncode != 0, f"{environment} was taken"
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("django.core.exceptions.ImproperlyConfigured:"), done.stderr
    return last


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POLL_INTERVAL", "abc"),
        ("POLL_INTERVAL", "0"),
        ("POLL_INTERVAL", "nan"),
        ("LOG_FILE", "/nowhere/web.log"),
        ("POLL_BATCH_SIZE", "-1"),
        ("MAX_RETRIES", "many"),
        ("EMAIL_MAX_AGE_HOURS", "0"),
        ("RETRY_DELAYS", "300,900,soon"),
        ("RETRY_DELAYS", "300,0"),
        ("ORDER_SOURCES", "order-service"),
        ("ORDER_SOURCES", "My Shop!"),
        ("LEASE_SECONDS", "5"),
        ("EMAIL_PROVIDERS", "pigeon"),
        ("EMAIL_URL", "smtp://mail.example.com:70000"),
        ("EMAIL_URL", "smtp://ann@mail.example.com"),
        ("EMAIL_TEMPLATES_DIR", "/nowhere"),
        ("NOTIFY_ON", "order.lost"),
        ("DEFAULT_FROM_EMAIL", "Shop"),
        ("REPLY_TO_EMAIL", "Shop"),
        ("DEFAULT_FROM_EMAIL", "Shop <orders@[127.0.0.1]>"),
        ("DEFAULT_FROM_EMAIL", "Shop <orders@exämple.com>"),
        ("REPLY_TO_EMAIL", "help@localhost"),
        ("SHOP_URL", "shop.example.com"),
        ("SENDGRID_API_URL", "api.sendgrid.com"),
        ("ARCHIVE_URL", "/archive"),
        ("DATABASE_URL", "mysql://localhost/shop"),
        ("DATABASE_URL", "postgresql://db1,,db2/shop"),
        ("REPLICA_DATABASE_URL", "mysql://localhost/shop"),
        ("REDIS_URL", "localhost"),
        ("FAST_PATH", "perhaps"),
        ("SENTRY_DSN", "sentry.example.com"),
        ("TRUSTED_PROXIES", "10.0.0.0/99"),
        ("SECRET_KEY_FILE", "/nowhere/secret"),
    ],
)
def test_it_refuses_a_bad_value_by_name(name: str, value: str) -> None:
    assert name in refusal(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("EMAIL_PROVIDERS", "ses,sendgird", "'sendgird' is none of sendgrid, ses, "),
        ("EMAIL_PROVIDERS", "ses,sendgird", "Did you mean sendgrid?"),
        ("EVENT_TRANSPORT", "kafak", "Did you mean kafka?"),
        ("LOG_LEVEL", "debgu", "Did you mean DEBUG?"),
        ("NOTIFY_ON", "order.payd", "Did you mean order.paid?"),
        ("ORDER_SOURCES", "My Shop!", "such as my-shop"),
    ],
)
def test_it_names_the_wrong_word_and_the_right_one(name: str, value: str, said: str) -> None:
    sentence = refusal(**{name: value})
    assert said in sentence
    assert "make clean" not in failed_part(sentence) and "make clean" in failed_part("a lost file")


@pytest.mark.parametrize(("word", "means"), [("TRUE", True), ("no", False)])
def test_a_switch_is_read_as_the_roles_read_theirs(word: str, means: bool) -> None:
    code = "from config import settings as s; print(s.FAST_PATH, s.EMAIL_EVENTS, s.EVENT_COMMANDS)"
    done = start(code, FAST_PATH=word, EMAIL_EVENTS=f" {word} ", EVENT_COMMANDS=word)
    assert done.stdout == f"{means} {means} {means}\n", done.stderr


def test_a_switch_that_is_set_and_empty_has_its_default() -> None:
    code = "from config import settings as s; print(s.FAST_PATH, s.EMAIL_EVENTS)"
    done = start(code, FAST_PATH="", EMAIL_EVENTS=" ")
    assert done.stdout == "True False\n", done.stderr


def test_a_switch_takes_no_other_word() -> None:
    assert "EVENT_COMMANDS must be on or off" in refusal(EVENT_COMMANDS="t")


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("", ["localhost", 25, "", "", False]),
        ("smtp://mail.example.com", ["mail.example.com", 25, "", "", False]),
        ("smtp+tls://mail.example.com/", ["mail.example.com", 587, "", "", True]),
        ("smtp://ann%40shop:p%2F%40%3A+%C3%A9@[::1]:2525", ["::1", 2525, "ann@shop", "p/@:+é", False]),
    ],
)
def test_the_url_of_a_mail_server_is_read(url: str, read: list[Any]) -> None:
    code = (
        "import json; from config import settings as s;"
        "print(json.dumps([s.EMAIL_HOST, s.EMAIL_PORT, s.EMAIL_HOST_USER, s.EMAIL_HOST_PASSWORD,"
        " s.EMAIL_USE_TLS]))"
    )
    done = start(code, EMAIL_URL=url)
    assert json.loads(done.stdout) == read, done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "smtp://ann:hidden@mail.example.com:port",
        "smtp://ann:hid/den@mail.example.com",
        "smtp://ann:hid#den@mail.example.com",
        "smtp://ann:hidden@[mail.example.com",
        "imap://ann:hidden@mail.example.com",
        "smtp://:hidden@mail.example.com",
        "smtp://ann:hidden@mail.example.com/?tls=true",
        "smtp://ann:hid%FF@mail.example.com",
        "smtp://ann%FF:hidden@mail.example.com",
    ],
)
def test_a_bad_url_of_a_mail_server_is_refused_without_its_password(url: str) -> None:
    done = start(EMAIL_URL=url)
    assert done.returncode != 0 and "ImproperlyConfigured: EMAIL_URL " in done.stderr
    assert "hid" not in done.stderr + done.stdout, done.stderr


def test_it_refuses_kafka_without_servers() -> None:
    assert "KAFKA_BOOTSTRAP_SERVERS" in refusal(EVENT_TRANSPORT="kafka")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("sasl.password=hidden", "must be a JSON object"),
        ('["sasl.password", "hidden"]', "must be a JSON object"),
        ('{"sasl.password": ["hidden"]}', "must be a JSON object"),
        ('{"sasl.pasword": "hidden"}', 'No such configuration property: "sasl.pasword"'),
        ('{"security.protocol": "SASL_SSL", "sasl.password": "hidden"}', "SASL"),
        ('{"sasl.password": "hidden", "session.timeout.ms": "soon"}', "session.timeout.ms"),
        ('{"sasl.password": "hidden", "session.timeout.ms": 900000}', "session.timeout.ms"),
        ('{"sasl.password": "hidden", "max.in.flight": 6}', "max.in.flight"),
        ('{"security.protocol": "SSL", "ssl.key.pem": "hidden"}', "ssl.key.pem"),
        ('{"sasl.password": "hidden", "error_cb": "print"}', "error_cb"),
        ('{"sasl.password": "hidden", "acks": 0, "group.id": "x"}', "must not set acks, group.id"),
        ('{"enable.auto.commit": true}', "must not set enable.auto.commit"),
        ('{"enable.idempotence": false}', "must not set enable.idempotence"),
    ],
)
def test_kafkas_options_that_cannot_work_or_would_lose_events_stop_the_start_without_the_password(
    options: str, named: str
) -> None:
    done = start(KAFKA_OPTIONS=options)
    last = done.stderr.strip().splitlines()[-1]
    assert "ImproperlyConfigured: KAFKA_OPTIONS" in last and named in last, done.stderr
    assert "hidden" not in done.stderr + done.stdout


def test_kafkas_options_may_have_texts_of_several_lines_and_commas(tmp_path: Path) -> None:
    options = {"security.protocol": "SSL", "ssl.ca.pem": make_authority()[0], "client.rack": "a,b=c"}
    (tmp_path / "kafka.json").write_text(json.dumps(options, indent=1))
    code = "import django, json; django.setup(); from django.conf import settings as s;"
    done = start(
        f"{code} print(json.dumps(s.KAFKA_OPTIONS))", KAFKA_OPTIONS_FILE=str(tmp_path / "kafka.json")
    )
    assert json.loads(done.stdout) == options, done.stderr


@pytest.mark.parametrize(("proxies", "believes"), [("", False), ("10.0.0.0/8", True)])
def test_a_proxys_word_about_tls_is_believed_where_proxies_are_named(proxies: str, believes: bool) -> None:
    code = "from config import settings as s; print(s.SECURE_PROXY_SSL_HEADER)"
    done = start(code, TRUSTED_PROXIES=proxies)
    assert ("HTTP_X_FORWARDED_PROTO" in done.stdout) == believes, done.stderr


def test_it_names_the_known_events_beside_a_misspelt_one() -> None:
    sentence = refusal(NOTIFY_ON="order.payed")
    assert "order.payed" in sentence and "order.part_refunded" in sentence


def test_the_length_of_retry_delays_replaces_max_retries() -> None:
    code = "from config import settings as s; print(s.RETRY_DELAYS, s.MAX_RETRIES)"
    assert start(code, RETRY_DELAYS="300, 900.5", MAX_RETRIES="9").stdout == "[300.0, 900.5] 2\n"
    assert start(code, MAX_RETRIES="9").stdout == "[] 9\n"


#: What the settings read, with a value that differs from the default.
VALUES = {
    "SECRET_KEY": "from a file",
    "ALLOWED_HOSTS": "orders.example.com",
    "NOTIFY_ON": "order.placed",
    "POLL_INTERVAL": "7",
    "RETRY_DELAYS": "1,2",
    "REDIS_URL": "redis://redis.example.com:6379/5",
    "METRICS_TOKEN": "scrape-me",
    "SENDGRID_API_KEY": "SG.x",
    "PRIVACY_KEY": "hash-me",
    "SHOP_NAME": "Tea & Co",
}


def test_a_file_may_hold_any_value_and_end_with_a_line_break(tmp_path: Path) -> None:
    files = {}
    for name, value in VALUES.items():
        (tmp_path / name).write_text(value if name in ("SECRET_KEY", "PRIVACY_KEY") else f"{value}\n")
        files[f"{name}_FILE"] = str(tmp_path / name)
    code = (
        "import json; from config import settings as s;"
        f"print(json.dumps({{n: getattr(s, n, s.ANYMAIL.get(n)) for n in {list(VALUES)}}}))"
    )
    done = start(code, **files)
    assert json.loads(done.stdout) == VALUES | {
        "ALLOWED_HOSTS": ["orders.example.com"],
        "NOTIFY_ON": ["order.placed"],
        "POLL_INTERVAL": 7.0,
        "RETRY_DELAYS": [1.0, 2.0],
    }, done.stderr


def test_a_key_from_a_file_keeps_its_line_break_because_stored_hashes_were_made_with_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text("key\n")
    code = "from config import settings as s; print(repr(s.SECRET_KEY), repr(s.PRIVACY_KEY))"
    done = start(code, SECRET_KEY_FILE=str(tmp_path / "key"))
    assert done.stdout == "'key\\n' 'key\\n'\n"


#: Reads of a variable that is not a setting, by roles, files and local runs.
READ_ELSEWHERE = re.compile(r"""(?:number_from|switch_from|os\.environ\.get)\("(\w+)\"""")
#: Those of them that libraries and the system define.
OF_OTHERS = {
    *("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "OTEL_SDK_DISABLED", "SENTRY_RELEASE"),
    *("JAVA_HOME", "XDG_CACHE_HOME"),
}


def test_the_tables_of_docs_configuration_have_the_variables_that_are_read_and_no_others() -> None:
    read = {*shipped.env.dump(), *shipped.raw.dump()}
    settings = [setting for declared in declarations().values() for setting in declared.settings]
    read |= {name for setting in settings for name in (setting.name, setting.fallback) if name}
    for folder in ("config", "local", "runtime"):
        for file in (PROJECT / folder).rglob("*.py"):
            read |= set(READ_ELSEWHERE.findall(file.read_text()))
    # Those of a provider that a shop has added are on a page next to its code.
    pages = "".join(page.read_text() for page in PROJECT.glob("notifications/providers/*/README.md"))
    read = {name for name in read if not re.search(rf"\b{name}\b", pages)}
    assert len(read) > 60
    assert read - OF_OTHERS == documented_settings()


PROCESSES = {
    "web": ["-m", "config.web", "--port", "0"],
    "worker": ["-m", "celery", "-A", "config", "worker", "--pool", "threads"],
    "beat": ["-m", "celery", "-A", "config", "beat"],
    "relay": ["manage.py", "relay_outbox"],
    "migrate": ["manage.py", "migrate"],
}


def test_a_mistake_stops_the_web_process_on_a_slow_machine_too() -> None:
    """Granian starts workers again that lived for more than 5.5 s, so the sleep must be longer than that."""
    code = (
        "import sys, time, types\n"
        "class Slow(types.ModuleType):\n"
        "    def __getattr__(self, name):\n"
        "        time.sleep(6)\n"
        "        raise RuntimeError('a mistake')\n"
        "sys.modules['config.wsgi'] = Slow('config.wsgi')\n"
        "sys.argv = ['web', '--port', '0']\n"
        "from config.web import main\n"
        "main()\n"
    )
    done = warm.run([sys.executable, "-c", code], environment=os.environ, timeout=PATIENCE)
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: a mistake" in done.stderr


def test_a_mistake_stops_the_web_process_whose_server_misses_the_signal() -> None:
    code = (
        "import os, signal, sys, time\n"
        "def serve(self, spawn_target, target_loader, wrap_loader):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    if os.fork() == 0:\n"
        "        target_loader()\n"
        "    time.sleep(600)\n"
        "from granian.server import Server\n"
        "Server.serve = serve\n"
        "from config import web\n"
        "web.GRACEFUL_SECONDS = -5\n"
        "sys.modules['config.wsgi'] = None\n"
        "sys.argv = ['web', '--port', '0']\n"
        "web.main()\n"
    )
    done = warm.run([sys.executable, "-c", code], environment=os.environ, timeout=PATIENCE)
    assert done.returncode == 1, done.stderr
    assert "config.wsgi" in done.stderr


@pytest.mark.parametrize("process", PROCESSES)
def test_templates_that_cannot_be_rendered_stop_each_process(process: str, tmp_path: Path) -> None:
    (tmp_path / "order.paid").mkdir()
    (tmp_path / "order.paid" / "subject.txt").write_text("{% if %}")
    settings = {"EMAIL_TEMPLATES_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "config.settings"}
    command = [sys.executable, *PROCESSES[process]]
    done = warm.run(command, environment=os.environ | settings, timeout=PATIENCE)
    assert done.returncode != 0
    assert "The e-mail template order.paid/subject.txt does not compile" in done.stderr


def test_one_server_of_postgres_is_parsed():
    database = parse_database("postgresql://shop:p%40ss@db:5433/orders?sslmode=require")
    wanted = {"USER": "shop", "PASSWORD": "p@ss", "HOST": "db", "PORT": 5433, "NAME": "orders"}
    assert {name: database[name] for name in wanted} == wanted
    assert database["OPTIONS"] == {"sslmode": "require"}


@pytest.mark.parametrize(
    ("servers", "host", "port"),
    [
        ("db1:5432,db2:5433", "db1,db2", "5432,5433"),
        ("db1,db2", "db1,db2", "5432,5432"),
        ("db1,db2:6432", "db1,db2", "5432,6432"),
        ("[::1]:5433,10.0.0.7", "::1,10.0.0.7", "5433,5432"),
    ],
)
def test_several_servers_become_lists_and_the_writable_one_is_wanted(servers, host, port):
    database = parse_database(f"postgresql://shop:p%40,s%2Fs@{servers}/orders?sslmode=require")
    assert (database["HOST"], database["PORT"]) == (host, port)
    assert (database["USER"], database["PASSWORD"], database["NAME"]) == ("shop", "p@,s/s", "orders")
    assert database["OPTIONS"] == {"sslmode": "require", "target_session_attrs": "read-write"}


def test_a_comma_in_a_password_is_no_list():
    database = parse_database("postgresql://shop:a,b@db/orders")
    assert (database["PASSWORD"], database["HOST"]) == ("a,b", "db")


def test_what_the_url_wants_of_a_server_is_kept():
    database = parse_database("postgresql://db1,db2/orders?target_session_attrs=primary")
    assert database["OPTIONS"] == {"target_session_attrs": "primary"}
    database = parse_database("postgresql://db1,db2/orders", prefer="prefer-standby")
    assert database["OPTIONS"] == {"target_session_attrs": "prefer-standby"}


@pytest.mark.parametrize("servers", ["db1:port,db2", "db1,", ",db2", "db1:1:2,db2", "[::1,db2"])
def test_a_server_that_is_none_is_refused_without_the_password(servers):
    with pytest.raises(ValueError, match="Each of its servers must be") as caught:
        parse_database(f"postgresql://shop:secret@{servers}/orders")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "bucket", "location", "endpoint"),
    [
        ("s3://archive", "archive", "", None),
        ("s3://archive/shop/two%20words/", "archive", "shop/two words", None),
        (
            "s3://archive/shop?endpoint_url=https://s3.example.com:9000",
            "archive",
            "shop",
            "https://s3.example.com:9000",
        ),
    ],
)
def test_archives_may_be_in_a_bucket(url, bucket, location, endpoint):
    storage = parse_archive(url)
    assert storage["BACKEND"] == "storages.backends.s3.S3Storage"
    wanted = {"bucket_name": bucket, "location": location, "endpoint_url": endpoint, "file_overwrite": True}
    assert storage["OPTIONS"] == wanted


@pytest.mark.parametrize(
    "url",
    [
        "file://archive",
        "s3:///prefix",
        "s3://key:secret@bucket",
        "s3://bucket?endpoint_url=s3.example.com",
        "s3://bucket?region=eu-central-1",
        "file:///folder%FF",
        "s3://bucket/prefix%FF",
    ],
)
def test_another_place_of_archives_is_refused_without_its_secret(url):
    with pytest.raises(ValueError) as caught:
        parse_archive(url)
    assert "secret" not in str(caught.value)


def test_archives_may_be_in_a_folder_that_only_its_owner_reads():
    storage = parse_archive("file:///srv/two%20words")
    assert storage["OPTIONS"] == {
        "location": "/srv/two words",
        "directory_permissions_mode": 0o700,
        "file_permissions_mode": 0o600,
    }


#: A variable that looks like a setting and is none stops a deployment, and other processes name it.
KNOWN = (
    *("DATABASE_URL", "KAFKA_BOOTSTRAP_SERVERS", "KAFKA_OPTIONS", "LEASE_SECONDS", "METRICS_HOST"),
    *("METRICS_PORT", "SENTRY_DSN", "AWS_REGION", "AWS_DEFAULT_REGION"),
)


def unknown(name: str, value: str = "x") -> dict[str, str]:
    return find_unknown(environ={name: value, "PATH": "/bin"}, names=KNOWN)


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("KAFKA_BOOTSTRAP_SERVER", "KAFKA_BOOTSTRAP_SERVERS"),
        ("KAFKA_XYZ", ""),
        ("KAFKA_OPTION_FILE", "KAFKA_OPTIONS_FILE"),
        ("METRICS_PORTS", "METRICS_PORT"),
        ("LEASE_SECOND", "LEASE_SECONDS"),
        ("METRICS_ADMIN_PORT", "METRICS_PORT"),
    ],
)
def test_an_unknown_variable_is_found_with_the_closest_setting(name: str, closest: str) -> None:
    assert unknown(name) == {name: closest}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KAFKA_OPTIONS_FILE", "/run/secrets/kafka"),
        ("DATABASE_PASSWORD", "part of a URL"),
        ("AWS_PROFILE", "shop"),
        ("SENTRY_RELEASE", "1"),
        ("OTEL_SERVICE_NAME", "orderpost"),
        ("GRANIAN_LOG_LEVEL", "info"),
        ("KAFKA", "on"),
        ("KAFKA_PORT", "tcp://10.96.0.12:9092"),
        ("KAFKA_SERVICE_HOST", "10.96.0.12"),
        ("KAFKA_SERVICE_PORT", "9092"),
        ("KAFKA_SERVICE_PORT_CLIENTS", "9092"),
        ("KAFKA_PORT_9092_TCP", "tcp://10.96.0.12:9092"),
        ("KAFKA_PORT_9092_TCP_ADDR", "10.96.0.12"),
        ("METRICS_UI_PORT", "tcp://10.96.0.13:80"),
    ],
)
def test_a_variable_of_others_is_not(name: str, value: str) -> None:
    assert unknown(name, value) == {}


def manage(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "config.settings"} | variables
    return warm.run([sys.executable, "manage.py", *words], environment=environment)


def warnings(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    return [
        (line["variable"], line["closest"]) for line in lines if line["event"] == "variable is not a setting"
    ]


@pytest.mark.parametrize("words", [["check", "--deploy"], ["migrate", "--noinput"]])
@pytest.mark.parametrize("suffix", ["", "_FILE"])
def test_it_stops_the_check_of_a_deployment_and_the_role_migrate(words: list[str], suffix: str) -> None:
    done = manage(*words, **{f"EMAIL_RATE_LIMITS{suffix}": "5"})
    assert done.returncode == 1
    sentence = f"EMAIL_RATE_LIMITS{suffix} is not a setting. Did you mean EMAIL_RATE_LIMIT{suffix}?"
    assert sentence in done.stderr


@pytest.mark.parametrize("words", [["check"], ["help", "status"], ["migrate", "--check", "--skip-checks"]])
def test_another_process_warns_of_it_once_and_starts(words: list[str]) -> None:
    done = manage(*words, EMAIL_RATE_LIMITS="5")
    assert "Did you mean" not in done.stderr
    assert warnings(done) == [("EMAIL_RATE_LIMITS", "EMAIL_RATE_LIMIT")]
    assert words[0] == "migrate" or done.returncode == 0, done.stderr


def test_no_documented_variable_is_unknown() -> None:
    names = documented_settings()
    assert len(names) > 60
    names_of_settings = {*shipped.env.dump(), *shipped.raw.dump()}
    assert find_unknown(environ=dict.fromkeys(names, "x"), names=names_of_settings) == {}


def test_the_example_of_the_docs_starts_and_only_its_example_values_are_warned_of() -> None:
    page = (PROJECT / "docs" / "reference" / "configuration.md").read_text()
    part = page.partition("\n## Unknown variables")[0].partition("```sh\n")[2].partition("```")[0]
    example = dict(line.split("=", 1) for line in part.splitlines())
    # An empty value keeps that of a local run's var/local.env out.
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "HTTPS": "", **example}
    done = warm.run([sys.executable, "manage.py", "check", "--deploy"], environment=environment)
    assert done.returncode == 0 and len(example) > 10, done.stderr
    assert set(re.findall(r"\((\w+\.[WE]\d+)\)", done.stderr)) == {"notifications.W003"}, done.stderr
