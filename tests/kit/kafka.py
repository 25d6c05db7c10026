"""Real Kafka for tests: one broker or three, in KRaft mode. Without Java or Maven, tests are skipped.

`cluster` is for one test. `shared` is one broker for a whole test run, with a second listener that wants TLS
and a password.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

from local.kafka import jars
from local.kafka.broker import EmbeddedKafka, new_cluster_id
from local.machine import HOST, free_port
from tests.kit.certificates import make_authority
from tests.kit.needs import reason
from tests.kit.waiting import PATIENCE, until


@cache
def why_not() -> str:
    """Return why Kafka cannot run here, or an empty text."""
    try:
        jars.java()
        jars.fetch(jars.BROKER)
    except jars.Unavailable as error:
        return str(error)
    return ""


def require() -> None:
    """Skip the calling test with the reason if Kafka cannot run."""
    if why := why_not():
        pytest.skip(reason("java and maven", why))


class Cluster:
    """Brokers on 127.0.0.1, numbered from 1. Each of them is a controller, too."""

    def __init__(
        self,
        *,
        folder: Path,
        brokers: int = 1,
        settings: Mapping[str, str] | None = None,
        secure: str = "",
        scram: Mapping[str, str] | None = None,
    ) -> None:
        """`secure` names the protocol of a second listener. `scram` has its users' passwords."""
        self.folder = folder
        self.secure = secure
        voters = {node: free_port() for node in range(1, brokers + 1)}
        cluster_id = new_cluster_id()
        self.brokers = {
            node: EmbeddedKafka(
                data=folder / f"kafka-{node}",
                port=free_port(),
                node=node,
                voters=voters,
                cluster_id=cluster_id,
                settings=settings,
                secure={secure: free_port()} if secure else None,
                scram=scram,
            )
            for node in voters
        }

    @property
    def url(self) -> str:
        """The value for KAFKA_BOOTSTRAP_SERVERS."""
        return ",".join(broker.url for broker in self.brokers.values())

    @property
    def secure_url(self) -> str:
        """The address of the second listener."""
        return ",".join(f"{HOST}:{broker.secure[self.secure]}" for broker in self.brokers.values())

    def start(self, *nodes: int) -> None:
        """Start these brokers, or all. Call it only from the main thread, as for all guarded processes."""
        chosen = [self.brokers[node] for node in nodes or self.brokers]
        for broker in chosen:
            broker.launch(log=self.log(broker.node))
        for broker in chosen:
            broker.wait_until_ready(log=self.log(broker.node), timeout_seconds=120, ended=broker.has_ended)

    def kill(self, *nodes: int) -> None:
        """SIGKILL."""
        for node in nodes:
            self.brokers[node].kill()

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.stop()

    def log(self, node: int) -> Path:
        return self.folder / f"kafka-{node}.log"

    def admin(self) -> confluent_kafka.admin.AdminClient:
        return confluent_kafka.admin.AdminClient({"bootstrap.servers": self.url})

    def make_topic(
        self, topic: str, *, partitions: int = 1, copies: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic and wait until it exists."""
        new = confluent_kafka.admin.NewTopic(topic, partitions, copies, config=dict(config or {}))
        admin = self.admin()  # its answers end with it
        for made in admin.create_topics([new], operation_timeout=30).values():
            made.result(PATIENCE)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the node that leads a partition, or -1 if none does."""
        partitions = self.admin().list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        return int(partitions[partition].leader) if partition in partitions else -1

    def wait_until_all_answer(self) -> None:
        def joined() -> int:
            return len(self.admin().list_topics(timeout=PATIENCE).brokers)

        until(lambda: joined() >= len(self.brokers), "all brokers have joined")


@contextlib.contextmanager
def cluster(*, brokers: int = 1, **options: Any) -> Iterator[Cluster]:
    """Run a throw-away cluster with the options of `Cluster`. Skip the test if Kafka cannot run."""
    require()
    with tempfile.TemporaryDirectory(prefix="orderpost-kafka-", ignore_cleanup_errors=True) as folder:
        made = Cluster(folder=Path(folder), brokers=brokers, **options)
        try:
            made.start()
            made.wait_until_all_answer()
            yield made
        finally:
            made.stop()


#: The options of `manage.py make_topics` for a single broker.
ONE_BROKER = {"partitions": 3, "replication_factor": 1, "min_insync_replicas": 1}
ONE_BROKER_OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in ONE_BROKER.items()]
USER, PASSWORD = "orderpost", "not-secret-tests-only"
_LISTENER = "listener.name.sasl_ssl"
_MODULES = "org.apache.kafka.common.security"
SECURE = {
    f"{_LISTENER}.ssl.keystore.type": "PEM",
    f"{_LISTENER}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    f"{_LISTENER}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
    f"{_LISTENER}.plain.sasl.jaas.config": (
        f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    ),
    # A client without a password, on the first listener, may do everything.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}


@dataclasses.dataclass(frozen=True)
class Shared:
    """The addresses of the shared broker. `authority` is the certificate (PEM) that signed the broker's."""

    url: str
    secure_url: str
    authority: str


@contextlib.contextmanager
def shared() -> Iterator[Shared]:
    """Yield the broker of this test run. The first process that asks starts it, and stops it as the last."""
    require()
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"orderpost-kafka-{run}"
    folder.mkdir(exist_ok=True)
    state = folder / "state.json"
    with contextlib.ExitStack() as stack:
        turn, users = (stack.enter_context((folder / name).open("w")) for name in ("turn", "users"))
        fcntl.flock(turn, fcntl.LOCK_EX)
        if state.exists():
            fcntl.flock(users, fcntl.LOCK_SH)
            fcntl.flock(turn, fcntl.LOCK_UN)
            yield Shared(**json.loads(state.read_text()))
            return
        authority, server = make_authority()
        keys = folder / "server.pem"
        keys.write_text(server)
        settings = SECURE | {f"{_LISTENER}.ssl.keystore.location": str(keys)}
        with cluster(settings=settings, secure="SASL_SSL", scram={USER: PASSWORD}) as broker:
            made = Shared(broker.url, broker.secure_url, authority)
            state.write_text(json.dumps(dataclasses.asdict(made)))
            fcntl.flock(users, fcntl.LOCK_SH)
            fcntl.flock(turn, fcntl.LOCK_UN)
            yield made
            fcntl.flock(turn, fcntl.LOCK_EX)
            state.unlink()
            fcntl.flock(users, fcntl.LOCK_EX)  # after the others have finished
        shutil.rmtree(folder, ignore_errors=True)
