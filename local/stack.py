"""One local run: start and stop its processes."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import redis

from config import roles
from local import environment
from local.console import Console
from local.environment import is_given
from local.kafka.broker import EmbeddedKafka
from local.machine import HOST, PROJECT, LocalRunFailed, failed_part, free_port, guarded, tail
from local.servers import EmbeddedPostgres, EmbeddedValkey, Server
from local.supervision import Program, StartBarrier, Supervisor
from runtime.process.redis_client import make_client

VAR = PROJECT / "var"
#: The files of the web's worker processes, from which the web serves their metrics as one.
WEB_METRICS = VAR / "run" / "metrics"
DEMO_LOG = VAR / "log" / "demo.log"
READY_SECONDS = 240  # a start takes 10 s of CPU; 90 s were too few on two cores shared with ten others


FIRST = ("web", "worker")  # the processes that a first e-mail needs; the others start afterwards
PROCESSES = (*FIRST, "beat", "background")
PATIENT = 10  # the niceness of all but the web: on a busy machine an e-mail may be late, an answer may not


class Stack:
    """The servers, processes and console of one local run."""

    def __init__(self, *, port: int) -> None:
        self.port = port
        is_external = {name: is_given(name, environ=os.environ) for name in ("DATABASE_URL", "REDIS_URL")}
        self.postgres = (
            None if is_external["DATABASE_URL"] else EmbeddedPostgres(data=VAR / "postgres", port=free_port())
        )
        self.valkey = (
            None if is_external["REDIS_URL"] else EmbeddedValkey(data=VAR / "valkey", port=free_port())
        )
        wants_kafka = roles.switch_from("KAFKA", environ=os.environ) and not is_given(
            "KAFKA_BOOTSTRAP_SERVERS", environ=os.environ
        )
        self.kafka = EmbeddedKafka(data=VAR / "kafka", port=free_port()) if wants_kafka else None
        self.wants_demo = roles.switch_from("DEMO", environ=os.environ)
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
            connection_key_file=VAR / "connection_key",
            webhook_keys_file=VAR / "webhook_keys.json",
        )
        self.console = Console(logs=VAR / "log", names=PROCESSES)
        self.initialised, self.prepared, self.up = (
            StartBarrier(VAR / "run" / name) for name in ("initialised", "prepared", "up")
        )
        self.supervisor = Supervisor(var=VAR)

    @property
    def servers(self) -> list[Server]:
        """The servers that this run starts."""
        return [server for server in (self.postgres, self.valkey, self.kafka) if server is not None]

    def run(self) -> None:
        """Start everything and show the logs until a signal stops it.

        Raise LocalRunFailed if a process cannot start or supervisord exits.
        """
        began = time.monotonic()
        self.prepare_metrics()
        environment.write_local_env(VAR / "local.env", environment=self.environment)
        with self.console.step(", ".join(server.name for server in self.servers) or "supervisord"):
            preparing = self.start_preparing()
            if self.kafka:
                self.kafka.prepare()  # its command depends on the files that this fetches
            self.supervisor.start(
                self.server_programs(), self.application_programs(), environment=self.environment
            )
            for server in self.servers:  # supervisord and Django are imported meanwhile
                server.prepare()
            self.initialised.open()
            for server in self.servers:
                log = VAR / "log" / f"{server.name.lower()}.log"
                server.wait_until_ready(log=log, ended=self.supervisor.check)
        with self.console.step("migrations"):
            self.finish_preparing(preparing)
        self.prepared.open()
        with self.console.step("web"):
            self.wait_until(lambda: answers(port=self.port))
        with self.console.step("worker"):
            url = self.environment.get("REDIS_URL") or Path(self.environment["REDIS_URL_FILE"]).read_text()
            self.wait_until(lambda: is_worker_waiting(url=url.strip()))
        self.console.say("\n" + self.welcome(seconds=time.monotonic() - began))
        self.up.open()
        self.follow()

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

    def start_preparing(self) -> subprocess.Popen[bytes]:
        """Start the process that migrates the database, with a local login in an embedded database.

        It reads the settings at once, and waits for `finish_preparing`.
        """
        options = [*(["--local-login"] if self.postgres else []), *(["--topics"] if self.kafka else [])]
        with (VAR / "log" / "prepare.log").open("wb") as log:
            return subprocess.Popen(
                guarded([sys.executable, "-m", "local.prepare", *options]),
                cwd=PROJECT,
                env={"LOG_LEVEL": "WARNING"} | self.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def finish_preparing(self, preparing: subprocess.Popen[bytes]) -> None:
        """Let the process continue, and wait until it exits. Raise LocalRunFailed with its reason."""
        assert preparing.stdin is not None
        preparing.stdin.close()
        self.wait_until(lambda: preparing.poll() is not None)
        if preparing.returncode != 0:
            raise LocalRunFailed(failed_part(tail(log=VAR / "log" / "prepare.log")))

    def server_programs(self) -> list[Program]:
        """Return the programs that start at once, and stop last."""
        programs = [
            Program(
                name=server.name.lower(),
                command=guarded(self.initialised.before(*server.command())),
                environment={"LC_ALL": "C", "TZ": "UTC"},
                stop_signal=server.stop_signal,
            )
            for server in self.servers
        ]
        if self.sandbox_port is not None:
            arguments = (
                *("--port", str(self.sandbox_port)),
                *("--webhook-url", f"http://{HOST}:{self.port}/webhooks"),
                *("--webhook-keys-file", str(VAR / "webhook_keys.json")),
                *("--keep-in", str(VAR / "mailbox.jsonl")),
            )
            command = guarded([sys.executable, "-m", "local.sandbox", *arguments], nice=PATIENT)
            programs.append(Program(name="sandbox", command=command, environment={}))
        return programs

    def application_programs(self) -> list[Program]:
        """Return the programs that wait for the database or for the first of them, and stop first."""
        as_root = {"PYTHONWARNINGS": "ignore:You're running the worker"} if os.geteuid() == 0 else {}
        commands = roles.commands(host=HOST, port=self.port)
        commands["background"] = [sys.executable, "-m", "local.background"]
        return [
            Program(
                name=name,
                command=guarded(
                    (self.prepared if name in FIRST else self.up).before(*commands[name]),
                    nice=0 if name == "web" else PATIENT,
                ),
                environment={
                    **(as_root if name in ("worker", "beat") else {}),
                    **({"PROMETHEUS_MULTIPROC_DIR": str(WEB_METRICS)} if name == "web" else {}),
                    "METRICS_HOST": HOST,
                    "METRICS_PORT": str(self.metrics_ports[name]),
                    # Not through supervisord, which would copy the lines for 4 % of the cost of an order.
                    "LOG_FILE": str(VAR / "log" / f"{name}.log"),
                },
            )
            for name in PROCESSES
        ]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true. Raise LocalRunFailed if a program exits, or after a time."""
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            self.supervisor.check()
            if time.monotonic() > deadline:
                raise LocalRunFailed(
                    f"It is not ready after {READY_SECONDS} s. The logs are in {VAR / 'log'}."
                    " Run `make run` again."
                )
            time.sleep(0.05)

    def start_demo(self) -> subprocess.Popen[bytes]:
        """Start `manage.py demo`, which writes into a file: the logs would tear its lines apart."""
        with DEMO_LOG.open("wb") as log:
            return subprocess.Popen(
                guarded([sys.executable, "manage.py", "demo"]),
                cwd=PROJECT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def follow(self) -> None:
        """Print the logs, and each exit and restart of a program, until supervisord exits.

        With DEMO=1, fill the database meanwhile, and print what there is to click.
        """
        filling = self.start_demo() if self.wants_demo else None
        while not self.supervisor.has_ended():
            self.console.pump()
            if filling is not None and filling.poll() is not None:
                self.console.say(DEMO_LOG.read_text())
                filling = None
            for line in self.supervisor.news():
                self.console.say(line, program="supervisord")
            self.supervisor.rotate_logs()
            time.sleep(0.1)
        raise LocalRunFailed("supervisord exited unexpectedly. Run `make run` again. No data is lost.")

    def close(self) -> None:
        """Stop everything in order. At a second signal kill all at once."""
        self.supervisor.stop()
        (VAR / "local.env").unlink(missing_ok=True)

    def welcome(self, *, seconds: float) -> str:
        """Return the addresses of everything, as text for the terminal."""
        web = f"http://{HOST}:{self.port}"
        login = "   (login: admin, password: admin)" if self.postgres else ""
        mailbox = [("Mailbox", f"http://{HOST}:{self.sandbox_port}/")] if self.sandbox_port else []
        ports = ", ".join(f"{name} {port}" for name, port in self.metrics_ports.items())
        rows = [
            ("API reference", f"{web}/api/docs"),
            ("Admin", f"{web}/admin/{login}"),
            *mailbox,
            *((server.name, server.url) for server in self.servers),
            ("Metrics", f"http://{HOST}:PORT/metrics: {ports}"),
            ("Logs", f"{VAR / 'log'}; only warnings and sent e-mails are shown here"),
        ]
        lines = [f"  {name:<13}  {value}" for name, value in rows]
        up = f"\norderpost is up after {seconds:.1f} s.\n"
        return "\n".join([up, *lines, "\nCtrl-C stops everything.\n"])


def answers(*, port: int) -> bool:
    """Return whether /readyz answers 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    with closing(connection), suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    return False


def is_worker_waiting(*, url: str) -> bool:
    """Tell whether a Celery worker waits for tasks at this broker, which it does by BRPOP.

    Return True if the broker does not tell. The rest of the run works without it.
    """
    try:
        with make_client(url=url, decode=True) as client:
            return any(connection["cmd"] == "brpop" for connection in client.client_list())
    except redis.RedisError:
        return True
