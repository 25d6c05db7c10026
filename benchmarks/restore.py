"""What a lost database machine costs with a backup and archived WAL: changes (RPO) and time (RTO)."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import threading
import time
import uuid
from pathlib import Path

import psycopg

from benchmarks.rig import Rig
from config.local.machine import HOST, PROJECT, free_port, guarded
from config.local.processes import commands

#: As docs/operations.md has it; the archive's directory stands for one on another machine.
ARCHIVING = {
    "archive_mode": "on",
    "archive_command": (
        'test ! -f "{archive}/%f" && cp "%p" "{archive}/.%f" && mv "{archive}/.%f" "{archive}/%f"'
    ),
    "archive_timeout": "60s",
}
ROLES = ("web", "worker", "beat", "relay")
_RENDERED = """
import django, json
django.setup()
from benchmarks.archives import rendered
print(json.dumps(rendered()))
"""
_NUMBERS = """(SELECT n, md5(%(run)s || n) AS hash,
        now() - interval '6 hours' * (1 - n::float / %(count)s) AS at
    FROM generate_series(1, %(count)s::int) AS n) AS numbers"""
_ID = """(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(hash, {digit}, 3)
    || '8' || substr(hash, 4, 15))::uuid"""
ORDERS = f"""
    INSERT INTO orders (id, status, version, user_id, email, name, locale, reference, items, total_amount,
        refunded_amount, currency, correlation_id, paid_at)
    SELECT {_ID.format(digit=1)}, 'paid', 2, hash::uuid, 'user' || n || '@example.com', 'User ' || n, 'en',
        hash, '[{{"sku": "pen", "name": "Brass pen", "quantity": 1, "unit_amount": 4200}}]', 4200, 0, 'EUR',
        hash, at
    FROM {_NUMBERS}
"""
MAILS = f"""
    INSERT INTO email_notifications (id, status, retry_count, max_retries, last_error, errors, provider,
        provider_message_id, correlation_id, traceparent, created_at, sent_at, event_type, recipient_email,
        to_name, locale, subject, body, body_text, idempotency_key, order_id)
    SELECT {_ID.format(digit=2)}, 'sent', 0, 3, '', '[]', 'sendgrid', hash, hash, '', at, at, 'order.paid',
        'user' || n || '@example.com', 'User ' || n, 'en', 'Your order ' || n,
        replace(%(html)s, 'NUMBER', hash), replace(%(text)s, 'NUMBER', hash), hash, {_ID.format(digit=1)}
    FROM {_NUMBERS}
"""
EVENTS = f"""
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, version, sequence, shard,
        payload, metadata, created_at, retry_count, next_attempt_at, last_error, published_at)
    SELECT {_ID.format(digit="{digit}")}, 'order', {_ID.format(digit=1)}, %(type)s, 1, %(sequence)s, n %% 64,
        jsonb_build_object('orderId', hash, 'status', 'paid', 'userId', hash::uuid, 'totalAmount', 4200,
            'currency', 'EUR', 'items', jsonb_build_array('Brass pen', 'pen', 1, 4200)),
        jsonb_build_object('correlationId', hash, 'causationId', hash,
            'idempotencyKey', 'sha256:' || hash || hash),
        at, 0, at, '', at
    FROM {_NUMBERS}
"""


def measure(*, rows: int, seconds: float, rate: float) -> str:
    """Lose the machine of a database with `rows` e-mails, after `seconds` of orders; return what it cost.

    Half of the rows are in the base backup, the other half in the archived WAL. After the loss nothing is
    left but backup, archive and logs.
    """
    with Rig() as rig:
        loss = Loss(rig)
        loss.prepare(rows)
        loss.lose(seconds, rate)
        loss.recover()
        loss.compare()
    said = [f"| {name} | {value} |" for name, value in loss.said.items()]
    return "\n".join(["| | |", "| --- | --- |", *said])


class Loss:
    """A database that is filled, lost and restored; `said` has what was measured."""

    def __init__(self, rig: Rig) -> None:
        self.said: dict[str, str] = {}
        self._rig, self._port = rig, free_port()
        folder = rig.postgres.data.parent
        self._archive, self._backup, self._restored = folder / "wal", folder / "backup", folder / "restored"

    def prepare(self, rows: int) -> None:
        """Archive WAL, write half of the rows, back up, write the other half."""
        rig = self._rig
        as_server(rig, "mkdir", self._archive)
        for name, value in ARCHIVING.items():
            rig.query(f"ALTER SYSTEM SET {name} = $value${value.format(archive=self._archive)}$value$")
        rig.postgres.stop()
        rig.postgres.start(log=rig.folder / "postgres.log")
        self._token = rig.python("-m", "manage", "create_token", "bench", "--scope", "all").strip()
        fill(rig, rows // 2)
        options = ["-d", rig.postgres.url, "-D", self._backup, "-c", "fast", "-X", "none"]
        with Stopwatch(self.said, "base backup with half of the rows"):
            as_server(rig, "pg_basebackup", *options)
        fill(rig, rows - rows // 2)
        rig.query("CHECKPOINT")

    def lose(self, seconds: float, rate: float) -> None:
        """Place orders for so long, then kill PostgreSQL and delete its data."""
        rig = self._rig
        rig.start_provider(delay=0.02)
        start(rig, self._port)
        self._client = Client(self._port, self._token, rate)
        self._client.run(seconds)
        ((size,),) = rig.query("SELECT pg_database_size(current_database())")
        self._gone = time.monotonic()
        assert rig.postgres._process is not None
        rig.postgres._process.kill()
        rig.postgres._process.wait(20)
        rig.postgres.stop()
        shutil.rmtree(rig.postgres.data)
        self._client.stop()
        for name in ROLES:
            rig.stop(name)
        replayed = sum(path.stat().st_size for path in self._archive.iterdir())
        self.said["database, archived WAL"] = f"{size / 1e9:.1f} GB, {replayed / 1e9:.1f} GB"

    def recover(self) -> None:
        """Do what docs/operations.md says, up to the first acknowledged write and the first e-mail."""
        rig = self._rig
        script = PROJECT / "docker" / "restore.sh"
        with Stopwatch(self.said, "docker/restore.sh … latest"):
            as_server(rig, script, self._backup, self._archive, self._restored, "latest")
        with Stopwatch(self.said, "start of PostgreSQL and all processes"):
            rig.postgres.data = self._restored
            rig.postgres.start(log=rig.folder / "postgres.log", timeout=600)
            start(rig, self._port)
            self._client.place()
        self.said["**RTO: from the loss to the first acknowledged write**"] = self._since()
        with Stopwatch(self.said, "after_restore"):
            logs = [str(rig.folder / f"{name}.log") for name in ROLES]
            self._listed = rig.python("-m", "manage", "after_restore", "--log", *logs).splitlines()
        before = rig.provided()
        rig.python("-m", "manage", "resume")
        deadline = time.monotonic() + 600
        while rig.provided() == before:
            assert time.monotonic() < deadline, "no e-mail within ten minutes"
            time.sleep(0.05)
        self.said["**RTO: from the loss to the first e-mail**"] = self._since()

    def compare(self) -> None:
        """Compare what was acknowledged with what is there."""
        known = {str(id) for (id,) in self._rig.query("SELECT id FROM orders WHERE correlation_id = 'rpo'")}
        placed = [(at, order) for at, order in self._client.acknowledged if at < self._gone]
        lost = {order: at for at, order in placed if order not in known}
        told = {json.loads(line).get("order_id") for line in self._listed}
        oldest = min(lost.values(), default=self._gone)
        self.said["orders acknowledged, of them lost"] = f"{len(placed)}, {len(lost)}"
        self.said["**RPO: age of the oldest lost change**"] = f"{self._gone - oldest:.0f} s"
        self.said["of the lost orders, listed by after_restore"] = str(len(lost.keys() & told))
        ((mails,),) = self._rig.query("SELECT count(*) FROM email_notifications")
        self.said["e-mails in the restored database"] = f"{mails:,}"

    def _since(self) -> str:
        return f"{time.monotonic() - self._gone:.0f} s"


class Stopwatch:
    """Write how long a block took."""

    def __init__(self, said: dict[str, str], name: str) -> None:
        self._said, self._name = said, name

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._said[self._name] = f"{time.monotonic() - self._began:.1f} s"
        print(f"  {self._name}: {self._said[self._name]}", flush=True)


class Client:
    """Places orders over HTTP, `rate` a second, and notes when each was acknowledged."""

    def __init__(self, port: int, token: str, rate: float) -> None:
        self._port, self._rate = port, rate
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "X-Correlation-ID": "rpo",
        }
        self.acknowledged: list[tuple[float, str]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop)

    def run(self, seconds: float) -> None:
        """Place orders for so long, and go on."""
        self._thread.start()
        time.sleep(seconds)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stopped.wait(1 / self._rate):
            try:
                order = self._post("/api/v1/orders")
                self._post(f"/api/v1/orders/{order}/pay")
            except (OSError, http.client.HTTPException, KeyError, ValueError):
                continue  # the server is gone
            self.acknowledged.append((time.monotonic(), order))

    def place(self) -> None:
        """Place an order; try until it is acknowledged."""
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            try:
                order = self._post("/api/v1/orders")
                self._post(f"/api/v1/orders/{order}/pay")
                return
            except (OSError, http.client.HTTPException, KeyError, ValueError):
                time.sleep(0.05)
        raise TimeoutError("no order was acknowledged within ten minutes")

    def _post(self, path: str) -> str:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=10)
        try:
            body = json.dumps(
                {"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 4200}
            )
            connection.request("POST", path, body if path.endswith("orders") else None, self._headers)
            answer = connection.getresponse()
            return str(json.loads(answer.read())["id"])
        finally:
            connection.close()


def start(rig: Rig, port: int) -> None:
    """Start the processes of a shop."""
    known = commands(port=port, web_workers=1)
    for name in ROLES:
        rig.run(name, known[name])


def fill(rig: Rig, count: int) -> None:
    """Write orders of the last six hours, each with its e-mail, sent, and two events, published."""
    html, text = json.loads(rig.python("-c", _RENDERED, DJANGO_SETTINGS_MODULE="config.settings"))
    with psycopg.connect(rig.postgres.url, autocommit=True) as connection:
        for _ in range(10):
            given = {"run": uuid.uuid4().hex, "count": count // 10, "html": html, "text": text}
            connection.execute(ORDERS.encode(), given)
            connection.execute(MAILS.encode(), given)
            for sequence, name in enumerate(("order.order.placed.v1", "order.order.paid.v1"), start=1):
                more = {"type": name, "sequence": sequence}
                connection.execute(EVENTS.format(digit=10 + sequence).encode(), given | more)


def as_server(rig: Rig, *arguments: str | Path) -> None:
    """Run a program as the account that runs PostgreSQL."""
    postgres = rig.postgres
    environment = postgres.environment() | {"PATH": f"{postgres.bin}:{os.environ['PATH']}"}
    command = guarded([*map(str, arguments)], parent=os.getpid(), account=postgres.account)
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
