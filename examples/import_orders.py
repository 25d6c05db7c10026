"""Import past orders from a CSV file, without sending e-mails about them.

    ORDERPOST_TOKEN=... .venv/bin/python examples/import_orders.py orders.csv --source my-shop

The token has the scope events:write, and ORDER_SOURCES names the source. The file is UTF-8. Its first line
names the columns. A cell may be empty unless its column is required.

| column | value |
| --- | --- |
| order_id, user_id | required; as the shop's events name them |
| status | required; pending, paid, confirmed, completed, cancelled, part_refunded or refunded |
| placed_at | required; ISO 8601, UTC unless it has an offset |
| email | required |
| total | required; in minor units, such as cents |
| refunded | the sum of all refunds in minor units; 0 if empty |
| was_paid | only of cancelled orders: true or false; if empty, whether something was refunded |
| name, locale, reference | as in the shop's events |
| currency | USD if empty; an order's later events must have the same |
| sequence | the order's version in the shop; 1 if empty |
| items | a JSON list of objects with sku, name, quantity and unitAmount |

Each line becomes one event, whose id depends on the source, the order and the sequence. So you can import a
file again: orders that have arrived are only counted as repeated. A changed line needs a higher sequence.
The file has no times of payment and completion, so they stay empty.

The program prints each refused line with its number and problem, and imports all others. It also prints the
warnings about values that orderpost replaced. It exits with 1 if it refused a line or had to give up.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import http.client
import itertools
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CHANGES = {
    "pending": "placed",
    "paid": "paid",
    "confirmed": "confirmed",
    "completed": "completed",
    "cancelled": "cancelled",
    "part_refunded": "part_refunded",
    "refunded": "refunded",
}
REQUIRED = {"order_id", "user_id", "status", "placed_at", "email", "total"}
OPTIONAL = {"refunded", "was_paid", "name", "locale", "currency", "reference", "sequence", "items"}
LIST_LENGTH = 100
#: Seconds to wait before each repetition, unless Retry-After says more.
WAITS = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60)
LONGEST_WAIT = 300
Json = dict[str, Any]
Row = dict[str, str]


def read_number(row: Row, column: str, *, default: int | None = None) -> int:
    """Return a whole number. Raise `ValueError`."""
    text = row.get(column, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{column} is not a whole number: {text!r}")
    return int(text)


def read_flag(row: Row, column: str, *, default: bool) -> bool:
    """Return true or false. Raise `ValueError`."""
    text = row.get(column, "").lower()
    if text not in ("", "true", "false"):
        raise ValueError(f"{column} is neither true nor false: {text!r}")
    return text == "true" if text else default


def read_time(row: Row, column: str) -> str:
    """Return a time with its offset. Raise `ValueError`."""
    time = dt.datetime.fromisoformat(row[column])
    return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).isoformat()


def make_event(row: Row, *, source: str) -> Json:
    """Return the event of a line. Raise `ValueError` if orderpost could not even read it."""
    status, sequence = row["status"], read_number(row, "sequence", default=1)
    if status not in CHANGES:
        raise ValueError(f"unknown status {status!r}: use {', '.join(CHANGES)}")
    refunded = read_number(row, "refunded", default=0)
    data: Json = {
        "orderId": row["order_id"],
        "userId": row["user_id"],
        "status": status,
        "placedAt": read_time(row, "placed_at"),
        "email": row["email"],
        "totalAmount": read_number(row, "total"),
        "refundedAmount": refunded,
        "notify": False,
    }
    data |= {name: row[name] for name in ("name", "locale", "currency", "reference") if row.get(name)}
    if row.get("items"):
        data["items"] = json.loads(row["items"])
    if status == "cancelled":
        data["wasPaid"] = read_flag(row, "was_paid", default=refunded > 0)
    if status in ("part_refunded", "refunded"):
        data["amount"] = refunded
    json.dumps(data, allow_nan=False, ensure_ascii=False).encode()  # only what a JSON list can have
    return {
        "eventId": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{source}/{row['order_id']}/import/{sequence}")),
        "timestamp": dt.datetime.now(dt.UTC).isoformat(),
        "eventType": f"order.order.{CHANGES[status]}.v1",
        "version": 1,
        "source": source,
        "data": data,
        "metadata": {"sequence": sequence},
    }


def read_rows(lines: Iterable[str]) -> Iterator[tuple[int, Row]]:
    """Yield each row after the number of its first line. Exit if the columns are wrong."""
    csv.field_size_limit(10**6)
    reader = csv.DictReader(lines, restkey="")
    columns = set(reader.fieldnames or ())
    if missing := REQUIRED - columns:
        sys.exit(f"The file has no column {', '.join(sorted(missing))}.")
    if unknown := columns - REQUIRED - OPTIONAL:
        sys.exit(
            f"Unknown columns: {', '.join(sorted(unknown))}. Use {', '.join(sorted(REQUIRED | OPTIONAL))}."
        )
    number = reader.line_num + 1
    for row in reader:
        yield number, {name: value.strip() if isinstance(value, str) else "" for name, value in row.items()}
        number = reader.line_num + 1


class Importer:
    """Sends the events of rows, and counts what became of them."""

    def __init__(self, *, url: str, token: str, source: str) -> None:
        self.url, self.token, self.source = f"{url.rstrip('/')}/api/v1/events", token, source
        self.counts: Counter[str] = Counter(processed=0, repeated=0, refused=0)

    def send_rows(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Send all rows in lists, and print the refused ones."""
        waiting = iter(rows)
        while part := list(itertools.islice(waiting, LIST_LENGTH)):
            events = []
            for number, row in part:
                try:
                    if "" in row:
                        raise ValueError("it has more values than the first line")
                    events.append((number, make_event(row, source=self.source)))
                except (ValueError, RecursionError) as error:
                    self.count(number, "refused", str(error))
            if events:
                self.send_events(events)

    def send_events(self, events: list[tuple[int, Json]]) -> None:
        """Send a list. Halve it while it is too large."""
        status, answer = self.post([event for _, event in events])
        if status == 413 and len(events) > 1:
            middle = len(events) // 2
            self.send_events(events[:middle])
            self.send_events(events[middle:])
        elif status == 413:
            self.count(events[0][0], "refused", "it is too large")
        elif status == 200:
            for (number, _), result in zip(events, answer["results"], strict=True):
                self.count(number, result["result"], result.get("problem", ""))
                for warning in result.get("warnings", ()):
                    print(f"line {number}: {warning}", file=sys.stderr, flush=True)
        else:
            sys.exit(f"The lines from {events[0][0]} on were not imported: {status or ''} {answer}")

    def count(self, number: int, result: str, problem: str) -> None:
        self.counts[result] += 1
        if result == "refused":
            print(f"line {number}: {problem}", file=sys.stderr, flush=True)

    def post(self, events: list[Json]) -> tuple[int, Any]:
        """Return the answer's status and body. Wait while orderpost is away, for five minutes in all."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url, json.dumps(events).encode(), headers)
        status, text = 0, ""
        for seconds in (*WAITS, None):
            told = 0
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    status, text = error.code, error.read().decode(errors="replace")
                if status not in (429, 502, 503, 504):
                    break
                after = error.headers.get("Retry-After", "")
                told = min(int(after), LONGEST_WAIT) if after.isdecimal() else 0
            except (OSError, ValueError, http.client.HTTPException) as error:
                text = str(error)
            if seconds is not None:
                print(f"waiting for orderpost: {status or ''} {text}", file=sys.stderr, flush=True)
                time.sleep(max(seconds, told))
        return status, text


def main() -> None:
    """Import a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", help="a CSV file; this program's source describes its columns")
    parser.add_argument("--source", required=True, help="the shop's name in ORDER_SOURCES")
    parser.add_argument(
        "--url",
        default=os.environ.get("ORDERPOST_URL", "http://127.0.0.1:8000"),
        help="orderpost's address (%(default)s)",
    )
    options = parser.parse_args()
    token = os.environ.get("ORDERPOST_TOKEN")
    if not token:
        sys.exit("Set ORDERPOST_TOKEN.")
    importer = Importer(url=options.url, token=token, source=options.source)
    try:
        # Bytes that are not UTF-8 become surrogates, so that only their line is refused.
        with Path(options.file).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            importer.send_rows(read_rows(lines))
    finally:
        print(", ".join(f"{count} {result}" for result, count in importer.counts.items()), flush=True)
    sys.exit(1 if importer.counts["refused"] else 0)


if __name__ == "__main__":
    main()
