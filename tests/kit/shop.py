"""A whole orderpost of real processes for one test: servers, web, worker, beat, standby, provider.

`with Shop(...) as shop:` starts the two servers and the provider; processes are started by name, killed by
`kill`, and all of them end with the test, or with pytest if that is killed (local.machine.guarded).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import requests

from local.machine import HOST, PROJECT, free_port, guarded
from local.sandbox import Sandbox
from local.servers import EmbeddedPostgres, EmbeddedValkey
from notifications.providers.sendgrid import make_key
from tests.kit import prepared, warm
from tests.kit.certificates import make_server_context
from tests.kit.constants import move_constants
from tests.kit.pgbouncer import WANTED, Pooler
from tests.kit.proxy import Proxy
from tests.kit.schemas import validate_published
from tests.kit.servers import stopped
from tests.kit.waiting import PATIENCE, until

#: Tables and partitions that have or have had rows.
WITH_PAGES = """
    SELECT oid::regclass::text FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND pg_relation_size(oid) > 0
"""
#: The keys by which the provider signs its events and the shop verifies them.
SIGNS, VERIFIES = make_key()
KEYS = {"sendgrid": SIGNS}
#: Short times, so that a lease expires and a hold passes within a test.
QUICK = {
    "POLL_INTERVAL": "1",
    "LEASE_SECONDS": "4",
    "EMAIL_CONNECT_TIMEOUT": "1",
    "EMAIL_READ_TIMEOUT": "2",
    "AMBIGUOUS_HOLD_SECONDS": "1",
    "RETRY_BACKOFF_BASE": "0.2",
    "LOG_FORMAT": "json",
    "HTTPS": "off",
    "DATABASE_TIMEOUT": "20",  # so that a machine under load does not look like a frozen database
}
#: Of a shop that kills no worker and whose provider fails in no test. A busy machine then loses no answer and
#: no lease, each of which allows a duplicate.
PATIENT: dict[str, Any] = {"LEASE_SECONDS": str(3 * PATIENCE), "EMAIL_READ_TIMEOUT": str(PATIENCE)}


#: Due e-mails, as a backlog is, past the API.
BACKLOG = """
    INSERT INTO email_notifications (id, status, retry_count, max_retries, last_error, errors, provider,
        provider_message_id, correlation_id, traceparent, event_type, recipient_email, to_name, from_email,
        locale, subject, body, body_text, idempotency_key, order_id)
    SELECT uuidv7(), 'pending', 0, 3, '', '[]', '', '', 'flow', '', 'order.paid',
        'u' || n || '@example.com', '', 'orders@example.com', 'en', 'Paid', '<p>Paid</p>', 'Paid',
        gen_random_uuid()::text, uuidv7()
    FROM generate_series(1, %s) AS n
"""


class Shop:
    """`settings` are environment variables, and constants (tests.kit.constants), that override `QUICK`.

    Processes reach PostgreSQL through `shop.proxy` if `proxied`, and with PGBOUNCER=1 through `shop.pooler`,
    except for connections that need their own session. With `tls`, they reach the providers over TLS.
    """

    def __init__(
        self, *, durable_valkey: bool = False, proxied: bool = False, tls: bool = False, **settings: str
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="orderpost-flow-")
        self.folder = Path(self._folder.name)
        # A throw-away server commits without waiting for the log, but tests kill this one.
        self.postgres = EmbeddedPostgres(data=self.folder / "postgres", port=free_port())
        self.valkey = EmbeddedValkey(
            data=self.folder / "valkey", port=free_port(), throwaway=not durable_valkey
        )
        self.proxy = Proxy(port=self.postgres.port) if proxied else None
        self.pooler = Pooler(server=(self.proxy or self.postgres).port) if WANTED else None
        self.settings = settings
        context = None
        if tls:
            context, authority = make_server_context(folder=self.folder)
            self.settings |= {"REQUESTS_CA_BUNDLE": str(authority), "SSL_CERT_FILE": str(authority)}
        self.sandbox = Sandbox(tls=context)
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes] | warm.Program] = {}
        self.session = requests.Session()

    def __enter__(self) -> Shop:
        try:
            token = prepared.copy_to(self.first_postgres())
            self.postgres.start(log=self.folder / "postgres.log")
            self._filled = {name for (name,) in self.query(WITH_PAGES)}
            self.valkey.start(log=self.folder / "valkey.log")
            self.sandbox.start()
            if self.proxy is not None:
                self.proxy.__enter__()
            if self.pooler is not None:
                self.pooler.__enter__()
        except BaseException:
            self.__exit__("it did not start")
            raise
        self.session.headers["Authorization"] = f"Bearer {token}"
        return self

    def first_postgres(self) -> EmbeddedPostgres:
        """Return the server that gets the prepared data."""
        return self.postgres

    def __exit__(self, failed: object = None, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)
        try:
            if failed is None:
                with contextlib.suppress(psycopg.OperationalError):  # a test may leave its server dead
                    self.check_events()
        finally:
            self._tidy()

    def check_events(self) -> None:
        """Check a hundred published events of each topic, except the tests', against the served schemas."""
        if not self.query("SELECT 1 FROM pg_tables WHERE tablename = 'outbox_events'"):
            return
        rows = self.query(
            "SELECT event_type, payload FROM (SELECT *, row_number() OVER (PARTITION BY event_type) AS place"
            " FROM outbox_events WHERE event_type NOT LIKE 'test.%') AS event WHERE place <= 100"
        )
        validate_published((topic, payload) for topic, payload in rows)

    def _tidy(self) -> None:
        self.sandbox.stop()
        if self.pooler is not None:
            self.pooler.__exit__()
        if self.proxy is not None:
            self.proxy.__exit__()
        for server in (self.valkey, self.postgres):
            server.stop()
            server.remove()
        self._folder.cleanup()

    @property
    def webhooks(self) -> str:
        """The URL for the provider's events."""
        return f"http://127.0.0.1:{self.port}/webhooks"

    @property
    def database_url(self) -> str:
        """The URL of PostgreSQL without a pooler."""
        url = self.postgres.url
        return url.replace(f":{self.postgres.port}/", f":{self.proxy.port}/") if self.proxy else url

    def environment(self, **settings: str) -> dict[str, str]:
        past = ("DIRECT_DATABASE_URL", "PARTITION_DATABASE_URL") if self.pooler else ()
        variables = {
            **os.environ,
            "DATABASE_URL": self.pooler.url() if self.pooler else self.database_url,
            **dict.fromkeys(past, self.database_url),
            "REDIS_URL": self.valkey.url,
            "EMAIL_PROVIDERS": "sendgrid",
            "SENDGRID_WEBHOOK_VERIFICATION_KEY": VERIFIES,
            "SENDGRID_API_KEY": "test",
            "SENDGRID_API_URL": self.sandbox.api_url,
            "SECRET_KEY": "not-secret-flows-only",
            **QUICK,
            **self.settings,
            **settings,
        }
        return move_constants(variables)

    def manage(self, *arguments: str, **settings: str) -> str:
        """Run a `manage.py` command and return its standard output."""
        command = [sys.executable, "manage.py", *arguments]
        done = warm.run(command, environment=self.environment(**settings))
        done.check_returncode()
        return done.stdout

    def start(
        self,
        *names: str,
        wait: bool = True,
        port: int | None = None,
        checkout: Path = PROJECT,
        **settings: str,
    ) -> None:
        """Start processes of these kinds. `beat:2` is a second beat. `checkout` may be another commit's.

        From the main thread alone: Linux kills a guarded process when the thread that started it ends.
        """
        port = port or self.port
        roles = runpy.run_path(str(checkout / "config" / "roles.py"))  # that commit knows its own commands
        all_commands = roles["commands"](host=HOST, port=port, processes=1)
        all_commands["background"] = [sys.executable, "-m", "local.background"]
        for name in names:
            kind = name.partition(":")[0]
            self.spawn(name, all_commands[kind], checkout=checkout, **settings)
            if kind == "web" and wait:
                self.until(lambda: self.web_answers(port), "the web process answers")

    def spawn(self, name: str, command: list[str], *, checkout: Path = PROJECT, **settings: str) -> None:
        """Start one process of any command. Call it only from the main thread, like `start`."""
        environment = self.environment(**settings)
        with (self.folder / f"{name}.log").open("ab") as log:
            if _forks(command, settings):
                self.processes[name] = warm.Program(
                    command,
                    environment=environment,
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                    checkout=checkout,
                )
                return
            self.processes[name] = subprocess.Popen(
                guarded(command),
                cwd=checkout,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def web_answers(self, port: int | None = None) -> bool:
        try:
            return requests.get(f"http://{HOST}:{port or self.port}/healthz", timeout=30).ok
        except requests.RequestException:
            return False

    def kill(self, name: str) -> None:
        """Kill a process and all its children (SIGKILL)."""
        process = self.processes.pop(name)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just exited
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process and all its children."""
        os.killpg(self.processes[name].pid, number)

    def terminate(self, name: str, *, seconds: float) -> bool:
        """Send SIGTERM only to the process, and kill it after `seconds`. Return whether it exited before."""
        process = self.processes[name]
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(name)
            return False
        del self.processes[name]
        return True

    def restart_valkey_hard(self, *, pause: float = 0.0) -> None:
        """Kill Valkey (SIGKILL), and start it on the same data and port."""
        self.valkey.kill()
        time.sleep(pause)
        self.valkey.start(log=self.folder / "valkey.log")

    def keep_logs(self) -> Path:
        """Copy the logs to a folder that is kept after the test."""
        kept = PROJECT / "var" / "chaos"
        kept.mkdir(parents=True, exist_ok=True)
        for log in self.folder.glob("*.log"):
            shutil.copy(log, kept)
        return kept

    def restart_postgres_hard(self) -> None:
        """Kill PostgreSQL (SIGKILL), and start it on the same data and port."""
        self.postgres.kill()
        self.postgres.start(log=self.folder / "postgres.log")

    @contextlib.contextmanager
    def backends_frozen(self, *, most: int = 1000) -> Iterator[int]:
        """Freeze the backends of open sessions without locks (SIGSTOP), and yield their number.

        New sessions work. A frozen backend with a lock would block all others, which no client can prevent.
        """
        idle = self.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'"
            f" AND pid <> pg_backend_pid() AND pid NOT IN (SELECT pid FROM pg_locks) LIMIT {most}"
        )
        with stopped([pid for (pid,) in idle]):
            yield len(idle)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        """Wait for `condition` up to `seconds`. The failure's text has the logs."""
        until(condition, what, seconds=seconds, details=self._ends_of_logs)

    def _ends_of_logs(self) -> str:
        """Return the ends of all logs, with the stacks of programs that run, and the ends of others."""
        ended = []
        for name, process in self.processes.items():
            if (code := process.poll()) is not None:
                ended.append(f"{name} ended with {code}")
            elif isinstance(process, warm.Program):
                process.send_signal(signal.SIGUSR2)
        time.sleep(1)  # a stack is written by a signal's handler, of which nobody hears
        logs = [
            f"== {file.name}\n{file.read_text(errors='replace')[-4000:]}"
            for file in self.folder.glob("*.log")
        ]
        return "\n".join([*ended, *logs])

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        url = f"http://127.0.0.1:{self.port}/api/v1{path}"
        return self.session.request(method, url, timeout=PATIENCE, **options)

    def place(self, email: str = "ann@example.com") -> str:
        body = {"user_id": str(uuid.uuid4()), "email": email, "total_amount": 4200}
        answer = self.call("POST", "/orders", json=body)
        assert answer.status_code == 201, answer.text + self._ends_of_logs()
        order: str = answer.json()["id"]
        return order

    def pay(self, order: str) -> None:
        answer = self.call("POST", f"/orders/{order}/pay")
        assert answer.status_code == 200, answer.text

    def rows(self, columns: str = "status") -> list[tuple[Any, ...]]:
        """Return columns of all e-mails, read without the application."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            return connection.execute(f"SELECT {columns} FROM email_notifications ORDER BY id").fetchall()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def empty(self) -> None:
        """Delete every order, e-mail and event, and the provider's mails. Keep tokens, groups and processes.

        Keep the broker's entries, too, because processes expect what they declared there.
        """
        self.check_events()
        self.until(self._truncate, "the tables are empty")
        self.sandbox.reset()

    def _truncate(self) -> bool:
        written = {name for (name,) in self.query(WITH_PAGES)} - self._filled
        if written:
            try:
                self.query(f"TRUNCATE {', '.join(sorted(written))} CASCADE")
            except psycopg.errors.DeadlockDetected:  # with a process that was about to claim, for example
                return False
        return True

    def start_missing(self, *names: str) -> None:
        """Start those processes that do not run."""
        for name in names:
            if name in self.processes and self.processes[name].poll() is not None:
                self.kill(name)
            if name not in self.processes:
                self.start(name)

    def all_sent(self, count: int) -> bool:
        return [status for (status,) in self.rows()] == ["sent"] * count

    def all_sent_or_overtaken(self, count: int) -> bool:
        rows = self.rows("status, last_error")
        return len(rows) == count and all(
            status == "sent" or (status == "discarded" and error.startswith("overtaken by "))
            for status, error in rows
        )

    def all_published(self) -> bool:
        return self.query("SELECT count(*) FROM outbox_events WHERE published_at IS NULL") == [(0,)]

    def insert_mails(self, count: int) -> None:
        """Write many due e-mails at once, as another program does, so that no fast path knows of them."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(BACKLOG, [count])

    def statuses(self) -> Counter[str]:
        return Counter(status for (status,) in self.rows())

    def doubled(self) -> list[tuple[Any, ...]]:
        """Return the e-mails that the provider accepted more than once, with the errors that say why."""
        twice = {id for id, count in self.accepted().items() if count > 1}
        return [row for row in self.rows("id::text, status, retry_count, errors") if row[0] in twice]

    def send_events(self, events: list[Any]) -> list[str]:
        """Post a list of events until it is answered, as after a lost answer. Return each event's result."""
        outcomes: list[str] = []

        def is_answered() -> bool:
            try:
                answer = self.call("POST", "/events", json=events)
            except requests.RequestException:
                return False
            if answer.status_code == 503:
                return False
            assert answer.status_code == 200, answer.text
            outcomes.extend(result["result"] for result in answer.json()["results"])
            return True

        until(is_answered, "the list is answered")
        return outcomes

    def accepted(self) -> dict[str, int]:
        """Return how often the provider accepted each notification."""
        return {key: accepted for key, (_, accepted) in self.sandbox.mailbox.counts().items()}


def _forks(command: list[str], settings: dict[str, str]) -> bool:
    """Return whether the tests start this program as a fork.

    A fork shares memory with the others, so the chaos run and the benchmarks, which measure it, start Python
    as in production. Python reads PYTHONPATH at its own start alone.
    """
    return prepared.FOLDER in os.environ and command[0] == sys.executable and "PYTHONPATH" not in settings


PAYMENT = "payment.payment.succeeded.v1"


def payment_event(order: str) -> dict[str, str]:
    """Return a payment service's event for an order, as the fields of a stream's entry."""
    return _entry(
        PAYMENT, order, source="payment-service", data={}, metadata={"correlationId": f"saga-{order}"}
    )


#: Another shop, whose orders come as events. Only a shop with this setting takes them.
OTHER_SHOP = "other-shop"
WITH_OTHER_SHOP = {"ORDER_SOURCES": OTHER_SHOP}


def other_shops_event(change: str, order: str, *, email: str, sequence: int) -> dict[str, str]:
    """Return another shop's event `placed` or `paid` for its order, as the fields of a stream's entry."""
    data = {
        "userId": "42",
        "status": "pending" if change == "placed" else change,
        "placedAt": dt.datetime.now(dt.UTC).isoformat(),
        "email": email,
        "totalAmount": 4200,
        "currency": "EUR",
    }
    topic = f"order.order.{change}.v1"
    return _entry(
        topic, order, source=OTHER_SHOP, data=data, metadata={"source": OTHER_SHOP, "sequence": sequence}
    )


def _entry(
    topic: str, order: str, *, source: str, data: dict[str, Any], metadata: dict[str, Any]
) -> dict[str, str]:
    envelope = {
        "eventId": str(uuid.uuid4()),
        "timestamp": dt.datetime.now(dt.UTC).isoformat(),  # an old event would become a dead letter
        "eventType": topic,
        "version": 1,
        "source": source,
        "data": {"orderId": order, **data},
        "metadata": metadata,
    }
    return {"key": order, "value": json.dumps(envelope)}


REFUNDED = "payment.payment.refunded.v1"
