"""Apache Kafka in KRaft mode, for `make run KAFKA=1` and for the tests; local.kafka.jars fetches it."""

from __future__ import annotations

import base64
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from local.kafka import jars
from local.machine import HOST, LocalRunFailed, free_port, guarded
from local.servers import Server

#: The settings of one small broker.
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAIN",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.index.size.max.bytes": "1048576",
}


def new_cluster_id() -> str:
    """Return a random id in the form of `kafka-storage random-uuid`."""
    return base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


class EmbeddedKafka(Server):
    """One broker that is also a controller.

    `voters` are the ports of all controllers by node, including this one. `settings` are added to `SETTINGS`.
    `secure` has the protocol and port of a second listener, such as `{"SASL_SSL": 20000}`. `scram` are users
    and passwords for SCRAM-SHA-512.
    """

    name = "Kafka"
    stop_signal = signal.SIGTERM

    def __init__(
        self,
        *,
        data: Path,
        port: int,
        node: int = 1,
        voters: Mapping[int, int] | None = None,
        cluster_id: str = "",
        settings: Mapping[str, str] | None = None,
        secure: Mapping[str, int] | None = None,
        scram: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(port=port)
        self.data = data
        self.node = node
        self.voters = dict(voters or {node: free_port()})
        self.cluster_id = cluster_id or new_cluster_id()
        self.settings = dict(settings or {})
        self.secure = dict(secure or {})
        self.scram = dict(scram or {})
        self._jars: Sequence[Path] = ()

    @property
    def url(self) -> str:
        """The value for KAFKA_BOOTSTRAP_SERVERS."""
        return f"{HOST}:{self.port}"

    @property
    def configuration(self) -> Path:
        return self.data.with_name(f"{self.data.name}.properties")

    def prepare(self) -> None:
        """Fetch Kafka, format the storage if it is new, and write the configuration with today's ports."""
        self._jars = jars.fetch(jars.BROKER)
        self.data.parent.mkdir(parents=True, exist_ok=True)
        if not (self.data / "meta.properties").exists():
            # Format under another name and rename. A later start would trust an unfinished storage.
            new = self.data.with_name(f"{self.data.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            self._write_configuration(data=new)
            self._format()
            new.rename(self.data)
        self._write_configuration(data=self.data)

    def argv(self) -> list[str]:
        return jars.command(jars=self._jars, main="kafka.Kafka", arguments=[self.configuration])

    def is_ready(self) -> bool:
        """Return whether it listens, which it does once it has read the cluster's metadata."""
        try:
            socket.create_connection((HOST, self.port), timeout=2).close()
        except OSError:
            return False
        return True

    def remove(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.configuration.unlink(missing_ok=True)

    def _write_configuration(self, *, data: Path) -> None:
        ports = {"PLAIN": self.port, **self.secure}
        listeners = [f"{name}://{HOST}:{port}" for name, port in ports.items()]
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAIN": "PLAINTEXT", **{name: name for name in self.secure}}
        copies = min(3, len(self.voters))
        whole = {
            **SETTINGS,
            "node.id": str(self.node),
            "log.dirs": str(data),
            "controller.quorum.voters": ",".join(
                f"{node}@{HOST}:{port}" for node, port in self.voters.items()
            ),
            "listeners": ",".join([*listeners, f"CONTROLLER://{HOST}:{self.voters[self.node]}"]),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(max(1, copies - 1)),
            "share.coordinator.state.topic.replication.factor": str(copies),
            "share.coordinator.state.topic.min.isr": str(max(1, copies - 1)),
            **self.settings,
        }
        self.configuration.write_text("".join(f"{name}={value}\n" for name, value in whole.items()))

    def _format(self) -> None:
        users = [
            part
            for name, password in self.scram.items()
            for part in ("--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]")
        ]
        options = ["format", "--cluster-id", self.cluster_id, "--config", str(self.configuration), *users]
        done = subprocess.run(
            guarded(
                jars.command(jars=self._jars, main="kafka.tools.StorageTool", arguments=options),
            ),
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if done.returncode != 0:
            raise LocalRunFailed(f"Kafka's storage could not be formatted:\n{done.stdout.strip()[-1500:]}")
