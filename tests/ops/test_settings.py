"""A bad setting stops every process with a sentence that names it, and a file may hold each value."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local.machine import PROJECT
from tests.kit import warm
from tests.kit.certificates import make_authority
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
        ("LOG_FILE", "/nowhere/web.log"),
        ("POLL_INTERVAL", "nan"),
        ("POLL_BATCH_SIZE", "-1"),
        ("MAX_RETRIES", "many"),
        ("RETRY_DELAYS", "300,900,soon"),
        ("RETRY_DELAYS", "300,0"),
        ("RETRY_DELAYS", "300,nan"),
        ("ORDER_SOURCES", "order-service"),
        ("LEASE_SECONDS", "5"),
        ("EMAIL_PROVIDERS", "pigeon"),
        ("EMAIL_URL", "smtp://mail.example.com:70000"),
        ("EMAIL_URL", "mail.example.com"),
        ("EMAIL_URL", "smtps://mail.example.com"),
        ("EMAIL_URL", "smtp://mail.example.com/?tls=true"),
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
        ("ARCHIVE_URL", "file://archive"),
        ("ARCHIVE_URL", "s3:///prefix"),
        ("ARCHIVE_URL", "s3://key:secret@bucket"),
        ("ARCHIVE_URL", "s3://bucket?endpoint_url=s3.example.com"),
        ("ARCHIVE_URL", "s3://bucket?region=eu-central-1"),
        ("DATABASE_URL", "mysql://localhost/shop"),
        ("DATABASE_URL", "postgresql://localhost:port/shop"),
        ("DATABASE_URL", "postgresql://db1:5432,db2:port/shop"),
        ("DATABASE_URL", "postgresql://db1,,db2/shop"),
        ("REDIS_URL", "localhost"),
        ("FAST_PATH", "perhaps"),
        ("SENTRY_DSN", "sentry.example.com"),
        ("TRUSTED_PROXIES", "10.0.0.0/99"),
        ("SECRET_KEY_FILE", "/nowhere/secret"),
    ],
)
def test_it_refuses_a_bad_value_by_name(name: str, value: str) -> None:
    assert name in refusal(**{name: value})


SWITCHES = {
    "on": True,
    "TRUE": True,
    "1": True,
    "yes": True,
    "off": False,
    "False": False,
    "0": False,
    "no": False,
}


@pytest.mark.parametrize(("word", "means"), SWITCHES.items())
def test_a_switch_is_on_or_off_by_four_words_each_in_any_case(word: str, means: bool) -> None:
    code = "from config import settings as s; print(s.FAST_PATH, s.EMAIL_EVENTS, s.EVENT_COMMANDS)"
    done = start(code, FAST_PATH=word, EMAIL_EVENTS=f" {word} ", EVENT_COMMANDS=word)
    assert done.stdout == f"{means} {means} {means}\n", done.stderr


def test_a_switch_that_is_set_and_empty_has_its_default() -> None:
    code = "from config import settings as s; print(s.FAST_PATH, s.EMAIL_EVENTS)"
    done = start(code, FAST_PATH="", EMAIL_EVENTS=" ")
    assert done.stdout == "True False\n", done.stderr


@pytest.mark.parametrize(
    "name",
    ["DEBUG", "HTTPS", "FAST_PATH", "EVENT_COMMANDS"],
)
def test_a_switch_takes_no_other_word(name: str) -> None:
    assert f"{name} must be on or off" in refusal(**{name: "t"})


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("", ["localhost", 25, "", "", False]),
        ("smtp://mail.example.com", ["mail.example.com", 25, "", "", False]),
        ("smtp+tls://mail.example.com/", ["mail.example.com", 587, "", "", True]),
        ("smtp://ann%40shop:p%2F%40%3A+%C3%A9@[::1]:2525", ["::1", 2525, "ann@shop", "p/@:+é", False]),
    ],
)
@pytest.mark.parametrize("from_file", [False, True])
def test_the_url_of_a_mail_server_is_read_from_the_environment_or_a_file(
    url: str, read: list[Any], from_file: bool, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(f"{url}\n")
    given = {"EMAIL_URL_FILE": str(tmp_path / "url")} if from_file else {"EMAIL_URL": url}
    code = (
        "import json; from config import settings as s;"
        "print(json.dumps([s.EMAIL_HOST, s.EMAIL_PORT, s.EMAIL_HOST_USER, s.EMAIL_HOST_PASSWORD,"
        " s.EMAIL_USE_TLS]))"
    )
    done = start(code, **given)
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
@pytest.mark.parametrize("from_file", [False, True])
def test_kafkas_options_that_cannot_work_or_would_lose_events_stop_the_start_without_the_password(
    options: str, named: str, from_file: bool, tmp_path: Path
) -> None:
    (tmp_path / "kafka.json").write_text(options + "\n")
    given = {"KAFKA_OPTIONS_FILE": str(tmp_path / "kafka.json")} if from_file else {"KAFKA_OPTIONS": options}
    done = start(**given)
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


def test_docs_configuration_names_every_variable_that_the_settings_read() -> None:
    source = (PROJECT / "config" / "settings.py").read_text()
    read = set(re.findall(r'(?:env\.\w+|raw\.\w+|_database)\(\s*"([A-Z0-9_]+)"', source))
    read |= {setting.name for declared in declarations().values() for setting in declared.settings}
    documented = (PROJECT / "docs" / "reference" / "configuration.md").read_text()
    assert len(read) > 60
    assert {name for name in read if not re.search(rf"\b{name}\b", documented)} <= {
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    }


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
        "def serve(self, target_loader, wrap_loader):\n"
        "    if os.fork() == 0:\n"
        "        target_loader()\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
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
