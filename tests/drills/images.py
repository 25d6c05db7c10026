"""The images of the drills: ours on a base of Debian's packages, and stand-ins for other images.

A stand-in has the name that compose.yaml gives, Debian's release of the program, and as much of the official
image's entry as compose.yaml uses. Mailpit is the real one, without its page. Grafana's only sleeps: Debian
has no Grafana.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import yaml

from local.kafka import jars
from local.machine import PROJECT
from tests.drills.engine import FOLDER, has_image, podman, run

RELEASE = "trixie"  # of Debian, with Python 3.13
BASE = f"localhost/orderpost-drill-{RELEASE}"
SERVERS = "localhost/orderpost-drill-servers"
IMAGE = "localhost/orderpost"
COMPOSE = PROJECT / "docker" / "compose.yaml"

INSTALL = (
    "RUN apt-get -o APT::Sandbox::User=root update -q && apt-get -o APT::Sandbox::User=root install -qy"
    " --no-install-recommends"
)
#: The images that only the profiles `kafka` and `cdc` pull, and the JAR files that are copied into them.
STREAMING = ("kafka", "connect", "curl")
JARS = {"broker": jars.BROKER, "connect": jars.CONNECT, "debezium": jars.DEBEZIUM}

#: Debian's packages of all stand-ins, and no cluster of Debian's own making.
SERVERS_FILE = f"""
FROM {BASE}
RUN mkdir -p /etc/postgresql-common \\
    && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf
{INSTALL} postgresql valkey-server valkey-tools prometheus prometheus-alertmanager
ENV PATH=/usr/lib/postgresql/17/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""

POSTGRES_ENTRY = """#!/bin/sh
set -e
[ "$1" = postgres ] || exec "$@"
data=/var/lib/postgresql/data
as_postgres="setpriv --reuid=postgres --regid=postgres --clear-groups"
install -d -o postgres -g postgres -m 700 "$data" && install -d -o postgres /run/postgresql
if [ ! -s "$data/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" > /tmp/password
    chmod 644 /tmp/password
    $as_postgres initdb -D "$data" --username="$POSTGRES_USER" --pwfile=/tmp/password \\
        --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8
    echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
    socket="-c unix_socket_directories=/run/postgresql"
    $as_postgres pg_ctl -D "$data" -w -o "-c listen_addresses= $socket" start
    createdb -h /run/postgresql -U "$POSTGRES_USER" "$POSTGRES_DB"
    for file in /docker-entrypoint-initdb.d/*.sql; do
        psql -q -v ON_ERROR_STOP=1 -h /run/postgresql -U "$POSTGRES_USER" -d "$POSTGRES_DB" -f "$file"
    done
    $as_postgres pg_ctl -D "$data" -m fast -w stop
fi
exec $as_postgres "$@" -D "$data" -c 'listen_addresses=*' -c unix_socket_directories=/run/postgresql
"""

#: KAFKA_NODE_ID sets node.id, for example.
KAFKA_ENTRY = """#!/bin/sh
set -ef  # Java reads the star itself
env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r name value; do
    echo "$(echo "$name" | tr A-Z_ a-z.)=$value"
done > /tmp/server.properties
java="java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp /kafka/*"
[ -e "$KAFKA_LOG_DIRS/meta.properties" ] ||
    $java kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c /tmp/server.properties
exec $java kafka.Kafka /tmp/server.properties
"""

#: As the official image's: each variable named for a property, and each that begins with CONNECT_.
CONNECT_ENTRY = """#!/bin/sh
set -e
env | sed -n -e 's/^CONNECT_//p' -e '/^BOOTSTRAP_SERVERS=/p' -e '/^GROUP_ID=/p' -e '/_STORAGE_TOPIC=/p' |
while IFS='=' read -r name value; do
    echo "$(echo "$name" | tr A-Z_ a-z.)=$value"
done > /tmp/connect.properties
{
    for store in config offset status; do echo "$store.storage.replication.factor=1"; done
    for part in key value; do echo "$part.converter=org.apache.kafka.connect.json.JsonConverter"; done
} >> /tmp/connect.properties
echo plugin.path=/plugins >> /tmp/connect.properties
exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp '/connect/*' \\
    org.apache.kafka.connect.cli.ConnectDistributed /tmp/connect.properties
"""

VALKEY_ENTRY = """#!/bin/sh
[ "$1" = valkey-server ] || exec "$@"
exec "$@" --protected-mode no
"""

#: What follows `FROM`, by the repository's name; `{entry}` is the script below.
STAND_INS = {
    "postgres": (SERVERS, POSTGRES_ENTRY, 'CMD ["postgres"]'),
    "valkey": (
        SERVERS,
        VALKEY_ENTRY,
        "WORKDIR /data",
    ),
    "prometheus": (
        SERVERS,
        "",
        'RUN install -d -o nobody /prometheus\nUSER nobody\nENTRYPOINT ["prometheus"]\n'
        'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]',
    ),
    "alertmanager": (
        SERVERS,
        "",
        'RUN install -d -o nobody /alertmanager\nUSER nobody\nENTRYPOINT ["prometheus-alertmanager"]\n'
        'CMD ["--config.file=/etc/alertmanager/alertmanager.yml", "--storage.path=/alertmanager"]',
    ),
    "kafka": (BASE, KAFKA_ENTRY, f"{INSTALL} openjdk-21-jre-headless\nCOPY broker /kafka"),
    "connect": (
        BASE,
        CONNECT_ENTRY,
        f"{INSTALL} openjdk-21-jre-headless\nCOPY connect /connect\nCOPY debezium /plugins/debezium",
    ),
    "curl": (BASE, "", f'{INSTALL} curl\nENTRYPOINT ["curl"]'),
    "mailpit": (BASE, "", 'COPY mailpit /mailpit\nENTRYPOINT ["/mailpit"]'),
    "nginx-unprivileged": (
        BASE,
        "",
        f'{INSTALL} nginx-light\nUSER 101\nCMD ["nginx", "-g", "daemon off;"]',
    ),
    "grafana": (BASE, "", 'CMD ["sleep", "infinity"]'),
}


def wanted() -> dict[str, str]:
    """Return the images that compose.yaml pulls and that have a stand-in, by the repository's name."""
    services = yaml.safe_load(COMPOSE.read_text())["services"].values()
    names = {service["image"] for service in services if "build" not in service}
    by_name = {re.sub(r":.*", "", name).rpartition("/")[2]: name for name in names}
    return {name: image for name, image in by_name.items() if name in STAND_INS}


def build() -> None:
    """Build our image as `make image` does, unless it is up to date."""
    make_base()
    labels = ("VERSION=1.2.3", "REVISION=4b825dc")
    run("make", "image", "ENGINE=podman", f"BASE={BASE}", f"TAG={IMAGE}", *labels, "ARGS=--network host")


def make_base() -> None:
    """Make an image of Debian with Python and this machine's certificates, which pip and uv may need."""
    if has_image(BASE):
        return
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        system = Path(folder) / "system"
        include = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", include, RELEASE, str(system))
        certificates = Path("etc/ssl/certs/ca-certificates.crt")
        shutil.copy("/" / certificates, system / certificates)
        shutil.rmtree(system / "var/cache/apt", ignore_errors=True)
        run("tar", "--create", "--file", f"{folder}/system.tar", "--directory", str(system), ".")
        podman("import", f"{folder}/system.tar", BASE)


def build_stand_ins(*, streaming: bool = False) -> None:
    """Build the stand-in of each image that compose.yaml pulls, those of STREAMING only with `streaming`."""
    make_base()
    _build(SERVERS, SERVERS_FILE)
    for name, image in wanted().items():
        if streaming or name not in STREAMING:
            base, entry, rest = STAND_INS[name]
            script = 'COPY --chmod=755 entry /entry\nENTRYPOINT ["/entry"]\n' if entry else ""
            _build(image, f"FROM {base}\n{script}{rest}\n", entry=entry)


def _build(image: str, file: str, *, entry: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "entry").write_text(entry)
        if "COPY mailpit" in file:
            _build_mailpit(Path(folder), release=image.rpartition(":")[2])
        for name, directory in JARS.items():
            if f"COPY {name} " in file:
                (Path(folder) / name).mkdir()
                for jar in jars.fetch(directory):
                    shutil.copy(jar, Path(folder) / name)
        podman("build", "--network", "host", "--tag", image, "--file", "-", folder, text=file)


def _build_mailpit(folder: Path, *, release: str) -> None:
    built = FOLDER / f"mailpit-{release}"
    if not built.exists():
        module = "github.com/axllent/mailpit"
        (folder / "go.mod").write_text(f"module standin\n\ngo 1.25.0\n\nrequire {module} {release}\n")
        build = ("go", "-C", str(folder), "build", "-p", "2", "-mod=mod", "-o", "mailpit", module)
        run("env", "CGO_ENABLED=0", *build)
        shutil.copy(folder / "mailpit", built)
    shutil.copy(built, folder / "mailpit")
