"""Send requests to a live server and write down what they answer and which rows they change."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Mapping
from typing import Any

from babel.dates import format_date
from django.db import connection

#: Tables and what orders their rows. Keys: the columns that identify a row.
TABLES = {
    "orders": ("id", ["id"]),
    "outbox_events": ("position", ["id"]),
    "email_notifications": ("event_type, id", ["id"]),
    "idempotency_keys": ("scope, key", ["scope", "key"]),
}
#: Headers that the test's server adds, or that name its address.
LEFT_OUT = {"date", "server", "connection"}
#: Columns that follow from a random id, a sequence or a secret.
FREE = {"outbox_events": {"position", "shard"}}
LOCALES = ("en", "de", "de_AT", "es", "fr", "fr_CA")

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d(?:\.\d+)?)(?:Z|\+00:00)")
_KEY_HASH = re.compile(r"sha256:[0-9a-f]{64}")  # of an Idempotency-Key, by PRIVACY_KEY
_HEX = re.compile(r"\b[0-9a-f]{32}\b")  # a correlation id that was made

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def path(self) -> str:
        """The Location of a new order."""
        return dict(self.headers)["Location"]


class Recorder:
    """One section's requests.

    `columns`: the columns to record of each table; all that there are if None. `whole`: show long texts, not
    their hashes.
    """

    def __init__(
        self,
        *,
        port: int,
        tokens: Mapping[str, str],
        columns: Mapping[str, list[str]] | None,
        whole: bool = False,
    ) -> None:
        self.port = port
        self._local = threading.local()
        self.tokens = tokens
        self.whole = whole
        self.columns = columns or {table: _columns(table) for table in TABLES}
        self.entries: dict[str, Any] = {}
        self._ids: dict[str, str] = {}
        self._times: dict[str, str] = {}
        self._hidden: dict[str, str] = {}
        self._hash = ""
        self._made: dict[str, str] = {}  # correlation ids, numbered in each record
        self._rows = self._read()
        self._dates = _dates_of_today()

    def send(
        self,
        name: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "all",
        key: str | None = None,
        **headers: str,
    ) -> Answer:
        """Send a request and record it. A body of bytes goes out as it is, anything else as JSON."""
        raw, sent = _request(body, key, headers)
        answer = self.exchange(method, path, raw, sent, self.tokens[token] if token else None)
        self.record(name, f"{method} {path}", raw, sent, answer)
        return answer

    def exchange(
        self, method: str, path: str, raw: bytes | None, headers: Mapping[str, str], secret: str | None
    ) -> Answer:
        """Send one request over this thread's connection."""
        client = self._client()
        client.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        client.putheader("Host", "localhost")
        for header, value in headers.items():
            client.putheader(header, value)
        if secret is not None:
            client.putheader("Authorization", f"Bearer {secret}")
        if "Transfer-Encoding" not in headers:
            client.putheader("Content-Length", str(len(raw or b"")))
        client.endheaders(raw)
        assert client.sock is not None
        # The server answers in two packets: without this, the second waits 40 ms for our acknowledgement.
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        response = client.getresponse()
        return Answer(response.status, response.getheaders(), response.read())

    def _client(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "client"):
            self._local.client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        client: http.client.HTTPConnection = self._local.client
        return client

    def close(self) -> None:
        """Close this thread's connection."""
        self._client().close()

    def record(
        self, name: str, line: str, raw: bytes | None, sent: Mapping[str, str], answer: Answer | None
    ) -> None:
        """Write down a request, its answer and the rows that changed since the last one."""
        assert name not in self.entries, name
        numbered = not re.search(r"notifications|/events", line)
        before, self._rows = self._rows, self._read()
        self._hash, self._made = _hash(line, raw), {}
        entry: dict[str, Any] = {"request": self._tidy(line), "headers": []}
        if sent:
            entry["sent"] = {key: self._tidy(value) for key, value in sent.items()}
        if raw:
            entry["with"] = self._tidy(raw.decode(errors="backslashreplace")) if len(raw) < 2000 else len(raw)
        if answer is not None:
            entry["status"] = answer.status
            entry["headers"] = [
                f"{key}: {self._tidy(value)}" for key, value in answer.headers if key.lower() not in LEFT_OUT
            ]
            entry["body"] = self._tidy(_in_order(answer.body.decode()), numbered=numbered)
        rows = {table: self._changed(table, before[table], answer) for table in TABLES}
        entry["rows"] = {table: found for table, found in rows.items() if found}
        self.entries[name] = entry

    def _changed(self, table: str, before: dict[str, Row], answer: Answer | None) -> list[Any]:
        found = []
        for key, row in self._rows[table].items():
            if key not in before:
                shown = row
            else:
                shown = {name: value for name, value in row.items() if value != before[key][name]}
                shown = {name: row[name] for name in TABLES[table][1]} | shown if shown else {}
            if shown:
                found.append({name: self._shown(table, name, value, answer) for name, value in shown.items()})
        found += [{"gone": self._tidy(key)} for key in before if key not in self._rows[table]]
        return found

    def _shown(self, table: str, name: str, value: Any, answer: Answer | None) -> Any:
        if name in FREE.get(table, ()):
            return f"<{name}>"
        if name == "answer_body" and answer is not None and value == answer.body.decode():
            return "<the answer's body>" if value else ""
        if name == "request_hash" and value:
            return "<the request's>" if value == self._hash else value
        if not isinstance(value, str):
            return json.loads(self._tidy(json.dumps(value, ensure_ascii=False)))
        text = self._tidy(value, numbered=table == "orders")
        if "\n" not in text:
            return text
        if not self.whole:
            text = text.replace("&#39;", "&#x27;")  # no Difference can name what is inside a hash
            return f"<{len(text)} characters, SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
        return text.split("\n")

    def _read(self) -> dict[str, dict[str, Row]]:
        rows: dict[str, dict[str, Row]] = {}
        with connection.cursor() as cursor:
            for table, (order, key) in TABLES.items():
                names = ", ".join(f'"{name}"' for name in self.columns[table])
                cursor.execute(
                    f"SELECT row_to_json(t)::text FROM (SELECT {names} FROM {table} ORDER BY {order}) AS t"
                )
                found = [json.loads(text) for (text,) in cursor.fetchall()]
                rows[table] = {"/".join(row[name] for name in key): row for row in found}
        return rows

    def _tidy(self, text: str, *, numbered: bool = False) -> str:
        """Replace what differs from run to run: ids, times, dates, secrets and hashes."""
        text = _UUID.sub(self._id, text)
        text = _TIME.sub(self._numbered_time if numbered else "<time>", text)
        for id, name in self._ids.items():
            if name.startswith("<uuid"):
                text = text.replace(id[-8:].upper(), f"<end of {name[1:-1]}>")
        for date in self._dates:
            text = text.replace(date, "<date>")
        for name, secret in self.tokens.items():
            text = text.replace(secret, f"<token {name}>")
        for hidden, shown in self._hidden.items():
            text = text.replace(hidden, shown)
        text = _KEY_HASH.sub("sha256:" + "0" * 64, text)
        return _HEX.sub(self._hex, text)

    def keep(self, *texts: str) -> None:
        """Leave these ids and traces in the records as they are."""
        self._ids |= {text: text for text in texts}

    def hide(self, shown: str, *texts: str) -> None:
        """Record `shown` in place of each of these texts."""
        self._hidden |= dict.fromkeys(texts, shown)

    def _id(self, found: re.Match[str]) -> str:
        kind, id = "uuid7" if found[1] == "7" else "uuid", found[0].lower()
        shown = self._ids.setdefault(id, f"<{kind} {len(self._ids) + 1}>")
        return shown if id == found[0] else shown.upper()

    def _hex(self, found: re.Match[str]) -> str:
        return self._ids.get(found[0]) or self._made.setdefault(found[0], f"<hex {len(self._made) + 1}>")

    def _numbered_time(self, found: re.Match[str]) -> str:
        # PostgreSQL leaves out zeros at the end, Python does not.
        return self._times.setdefault(found[1] + found[2].ljust(15, "0"), f"<time {len(self._times) + 1}>")


def _request(body: Any, key: str | None, headers: Mapping[str, str]) -> tuple[bytes | None, dict[str, str]]:
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if raw is not None:
        sent.setdefault("Content-Type", "application/json")
    if key is not None:
        sent["Idempotency-Key"] = key
    return raw, {name: value for name, value in sent.items() if value}


def _in_order(body: str) -> str:
    """Sort the faults of a 400 where several fields are unknown: they come in a random order."""
    if body.count("This field is not known here.") < 2:
        return body
    document = json.loads(body)
    document["errors"].sort(key=lambda fault: (fault["detail"], fault["pointer"]))
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _hash(line: str, raw: bytes | None) -> str:
    """Return what release 0.1.0 stores as the hash of a request; a key outlives a deploy."""
    try:
        body = json.dumps(json.loads(raw or b"{}"), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return ""
    return hashlib.sha256(f"{line.partition('?')[0]}\n{body}".encode()).hexdigest()


def _columns(table: str) -> list[str]:
    with connection.cursor() as cursor:
        return [column.name for column in connection.introspection.get_table_description(cursor, table)]


def _dates_of_today() -> list[str]:
    now = dt.datetime.now(dt.UTC)
    days = {now.date(), (now - dt.timedelta(minutes=5)).date()}
    return [
        format_date(day, "long", locale).replace(" ", "\N{NO-BREAK SPACE}", 1)
        for day in days
        for locale in LOCALES
    ]
