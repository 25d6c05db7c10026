"""One local run: start and stop its processes. For `local`."""

from __future__ import annotations

import http.client
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import redis
from django.core.exceptions import ImproperlyConfigured

from config import roles
from local import environment, orphans
from local.console import Console
from local.environment import is_given
from local.kafka.broker import EmbeddedKafka
from local.machine import HOST, PROJECT, LocalRunFailed, free_port, guarded
from local.servers import EmbeddedPostgres, EmbeddedValkey, Server
from local.supervision import SUPERVISOR, Program, Supervisor, supervised
from outbox.process.redis_client import make_client

VAR = PROJECT / "var"
POSTGRES_DATA = VAR / "postgres"
#: The files of the web's worker processes, from which the web serves their metrics as one.
WEB_METRICS = VAR / "run" / "metrics"
READY_SECONDS = 240  # a start takes 16 s of CPU; 90 s were too few on two cores shared with ten others


class StopRequested(BaseException):
    """Ctrl-C, SIGTERM or a closed terminal. Not an Exception, so that no handler swallows it."""


PROCESSES = ("web", "worker", "beat", "background")
PATIENT = 10  # the niceness of all but the web: on a busy machine an e-mail may be late, an answer may not


class Stack:
    """The servers, processes and console of one local run."""

    def __init__(self, *, port: int) -> None:
        self.port = port
        given = {name: is_given(name, environ=os.environ) for name in ("DATABASE_URL", "REDIS_URL")}
        self.postgres = (
            None if given["DATABASE_URL"] else EmbeddedPostgres(data=POSTGRES_DATA, port=free_port())
        )
        self.valkey = None if given["REDIS_URL"] else EmbeddedValkey(data=VAR / "valkey", port=free_port())
        wants_kafka = roles.switch_from("KAFKA", environ=os.environ) and not is_given(
            "KAFKA_BOOTSTRAP_SERVERS", environ=os.environ
        )
        self.kafka = EmbeddedKafka(data=VAR / "kafka", port=free_port()) if wants_kafka else None
        self.sandbox_port = free_port(wished=port + 1) if environment.played(environ=os.environ) else None
        first = int(os.environ.get("METRICS_PORT") or port + 2)
        self.metrics_ports = {name: free_port(wished=first + n) for n, name in enumerate(PROCESSES)}
        self.environment = environment.complete(
            environ=os.environ,
            database_url=self.postgres.url if self.postgres else None,
            redis_url=self.valkey.url if self.valkey else None,
            kafka_servers=self.kafka.url if self.kafka else None,
            sandbox_port=self.sandbox_port,
            secret_key_file=VAR / "secret_key",
            webhook_keys_file=VAR / "webhook_keys.json",
        )
        self.environment[orphans.MARKER] = str(VAR)
        self.console = Console(logs=VAR / "log", names=list(PROCESSES))
        self.supervisor: Supervisor | None = None

    @property
    def servers(self) -> list[Server]:
        """The servers that this run starts."""
        return [server for server in (self.postgres, self.valkey, self.kafka) if server is not None]

    def run(self) -> None:
        """Start everything and show the logs until a signal stops it.

        Raise LocalRunFailed if a process cannot start or supervisord exits. A signal's handler raises
        StopRequested.
        """
        began = time.monotonic()
        say = self.console.say
        ended = orphans.end(var=VAR, postgres_data=self.data, grace_seconds=25)
        if ended:
            say(f"  ended {ended} processes that an earlier run had left")
        self.prepare_metrics()
        environment.write_local_env(VAR / "local.env", environment=self.environment)
        worker_grace = self.check_settings()
        if self.postgres and not (self.postgres.data / "PG_VERSION").exists():
            say(f"  database: making a new one in {self.postgres.data}")
        for server in self.servers:
            server.prepare()
        self.supervisor = Supervisor(
            var=VAR,
            servers=self.server_programs(),
            application=application_programs(
                port=self.port, worker_grace=worker_grace, metrics_ports=self.metrics_ports
            ),
        )
        self.supervisor.start(environment=self.environment)
        for server in self.servers:
            server.wait_until_ready(
                log=VAR / "log" / f"{server.name.lower()}.log", ended=self.supervisor.has_ended
            )
        self.prepare_database()
        say(f"  starting {', '.join(PROCESSES)}")
        self.supervisor.start_application()
        self.wait_until_ready()
        say(self.welcome(seconds=time.monotonic() - began))
        self.follow()

    @property
    def data(self) -> Path:
        """The directory of PostgreSQL's data. It is outside var/ if PostgreSQL must run as nobody."""
        return self.postgres.data if self.postgres else POSTGRES_DATA

    def prepare_metrics(self) -> None:
        """Delete the metrics of an earlier run, and list the ports for Prometheus."""
        WEB_METRICS.mkdir(parents=True, exist_ok=True)
        for file in WEB_METRICS.glob("*.db"):
            file.unlink()
        targets = [
            {"targets": [f"{HOST}:{port}"], "labels": {"role": name}}
            for name, port in self.metrics_ports.items()
        ]
        (VAR / "run" / "metrics_targets.json").write_text(json.dumps(targets, indent=1) + "\n")

    def check_settings(self) -> int:
        """Read the settings as every process does, and return the worker's grace period in seconds.

        Raise LocalRunFailed with the reason if a setting is bad.
        """
        os.environ.update(self.environment)
        try:
            from config import settings
        except ImproperlyConfigured as error:
            raise LocalRunFailed(str(error)) from error
        return math.ceil(settings.EMAIL_CONNECT_TIMEOUT + settings.EMAIL_READ_TIMEOUT) + 5

    def server_programs(self) -> list[Program]:
        """Return the programs that start before the database is prepared, in order."""
        programs = [
            Program(
                name=server.name.lower(),
                command=server.command(parent=SUPERVISOR),
                priority=10 + n,
                stop_signal=server.stop_signal,
                stop_seconds=20,
                environment={"LC_ALL": "C", "TZ": "UTC"},
            )
            for n, server in enumerate(self.servers)
        ]
        if self.sandbox_port is not None:
            arguments = (
                *("--port", str(self.sandbox_port)),
                *("--webhook-url", f"http://{HOST}:{self.port}/webhooks"),
                *("--webhook-keys-file", str(VAR / "webhook_keys.json")),
            )
            command = supervised(sys.executable, "-m", "local.sandbox", *arguments, nice=PATIENT)
            programs.append(Program(name="sandbox", command=command, priority=20, stop_seconds=5))
        return programs

    def prepare_database(self) -> None:
        """Migrate. Create the local login in an embedded database, and the topics in an embedded Kafka."""
        options = [*(["--local-login"] if self.postgres else []), *(["--topics"] if self.kafka else [])]
        command = guarded([sys.executable, "-m", "local.prepare", *options], parent=os.getpid())
        quietly = {"LOG_LEVEL": "WARNING"} | self.environment
        if subprocess.run(command, cwd=PROJECT, env=quietly, process_group=0).returncode != 0:
            raise LocalRunFailed("The database could not be prepared. The reason is above.")

    def wait_until_ready(self) -> None:
        """Wait until /readyz answers 200 and the worker accepts e-mails.

        Raise LocalRunFailed after `READY_SECONDS`.
        """
        assert self.supervisor is not None
        deadline = time.monotonic() + READY_SECONDS
        while missing := self._what_is_missing():
            self.supervisor.check()
            self.console.pump()
            if time.monotonic() > deadline:
                raise LocalRunFailed(f"Not ready after {READY_SECONDS} s: {missing}")
            time.sleep(0.1)

    def _what_is_missing(self) -> str:
        from config import settings

        if answer := readiness(port=self.port):
            return f"/readyz says {answer}"
        if not is_worker_waiting(url=settings.REDIS_URL):
            return f"the worker takes no task. Its log is {VAR / 'log' / 'worker.log'}."
        return ""

    def follow(self) -> None:
        """Print the logs, and each restart by supervisord, until supervisord exits."""
        assert self.supervisor is not None
        pids: dict[str, int] = {}
        turn = 0
        while not self.supervisor.has_ended():
            self.console.pump()
            if turn % 10 == 0:
                with suppress(OSError):
                    self.supervisor.rotate_logs()
                    for program in self.supervisor.programs():
                        name, pid = program["name"], program["pid"]
                        if pid and pid != pids.get(name, pid):
                            self.console.say(f"{name} had exited and was started again (process {pid}).")
                        if pid:
                            pids[name] = pid
            turn += 1
            time.sleep(0.1)
        raise LocalRunFailed("supervisord exited unexpectedly. Run `make run` again. No data is lost.")

    def stop(self) -> None:
        """Stop everything in order. At a second signal kill supervisord at once."""
        if self.supervisor is not None:
            deadline = time.monotonic() + self.supervisor.stop_seconds() + 5
            try:
                self.supervisor.ask_to_stop()
                while not self.supervisor.has_ended() and time.monotonic() < deadline:
                    with suppress(OSError):  # the terminal may be closed
                        self.console.pump()
                    time.sleep(0.05)
            except StopRequested:
                with suppress(OSError):
                    self.console.say("Stopping at once.")
            self.supervisor.kill()
        orphans.end(var=VAR, postgres_data=self.data, grace_seconds=25)
        (VAR / "local.env").unlink(missing_ok=True)
        self.console.close()

    def welcome(self, *, seconds: float) -> str:
        """Return the addresses of everything, as text for the terminal."""
        web = f"http://{HOST}:{self.port}"
        login = "   (login: admin, password: admin)" if self.postgres else ""
        lines = [
            f"\norderpost is up after {seconds:.1f} s.\n",
            f"  API reference  {web}/api/docs",
            f"  Admin          {web}/admin/{login}",
        ]
        if self.sandbox_port is not None:
            lines.append(f"  Mailbox        http://{HOST}:{self.sandbox_port}/")
        if self.postgres is not None:
            lines.append(f"  PostgreSQL     {self.postgres.url}")
        if self.valkey is not None:
            lines.append(f"  Valkey         {self.valkey.url}")
        if self.kafka is not None:
            lines.append(f"  Kafka          {self.kafka.url}")
        ports = ", ".join(f"{name} {port}" for name, port in self.metrics_ports.items())
        lines.append(f"  Metrics        http://{HOST}:PORT/metrics: {ports}")
        lines.append(f"  Logs           {VAR / 'log'}, in full as JSON lines; warnings and a few more here")
        return "\n".join([*lines, "\nCtrl-C stops everything.\n"])


def application_programs(*, port: int, worker_grace: int, metrics_ports: Mapping[str, int]) -> list[Program]:
    """Return the programs that need the database. They stop first, all at once."""
    as_root = {"PYTHONWARNINGS": "ignore:You're running the worker"} if os.geteuid() == 0 else {}
    commands = roles.commands(host=HOST, port=port)
    commands["background"] = [sys.executable, "-m", "local.background"]
    return [
        Program(
            name=name,
            command=supervised(*commands[name], nice=0 if name == "web" else PATIENT),
            priority=100,
            stop_seconds=max(15, worker_grace),
            environment={
                **(as_root if name in ("worker", "beat") else {}),
                **({"PROMETHEUS_MULTIPROC_DIR": str(WEB_METRICS)} if name == "web" else {}),
                "METRICS_HOST": HOST,
                "METRICS_PORT": str(metrics_ports[name]),
                # Not through supervisord, because copying the lines took 4 % of the cost of an order.
                "LOG_FILE": str(VAR / "log" / f"{name}.log"),
            },
        )
        for name in PROCESSES
    ]


def readiness(*, port: int) -> str:
    """Return why /readyz does not answer 200, or "" if it does."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read().decode(errors="replace")
        return "" if response.status == 200 else f"{response.status} {body[:500]}"
    except (OSError, http.client.HTTPException) as error:
        return f"no answer ({error})"
    finally:
        connection.close()


def is_worker_waiting(*, url: str) -> bool:
    """Tell whether a Celery worker waits for tasks at this broker, which it does by BRPOP.

    Return True if the broker does not tell, because the rest of the run works without it.
    """
    try:
        with make_client(url=url, decode=True) as client:
            return any(one["cmd"] == "brpop" for one in client.client_list())
    except redis.RedisError:
        return True
