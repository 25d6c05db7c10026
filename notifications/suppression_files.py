"""Read the lists of addresses to which a provider no longer sends, as its pages and its API export them.

Only hard bounces and complaints count. A person who left a newsletter still wants to hear of an order.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from django.db import transaction

from notifications.models import Suppression
from notifications.providers.webhook import blames_address
from notifications.suppressions import SuppressionReason, suppress
from runtime.addresses import NotAnAddress, read_address
from runtime.audit import Actor, record
from runtime.models import AuditRow
from runtime.personal_data import address_hash

#: JSON is read at once, and needs ten times its size of memory.
MOST_JSON_BYTES, MOST_CSV_BYTES = 100_000_000, 1_000_000_000
LONGEST_LINE = 100_000
BATCH = 1000
#: A summary names at most so many lines.
MOST_LINES = 10
R = Suppression.Reason
Row = Mapping[str, str]
#: A reason, or words for what is left out.
Judged = R | str
OTHER_CAUSE = "bounces that say nothing about the address"
BY_HAND = "addresses suppressed by hand, or unsubscribed"


class UnknownFile(ValueError):
    """The file is none of the known lists. The text says which are known."""


class Format(NamedTuple):
    """A list of a provider, known by its columns in lower case, without spaces and underscores."""

    provider: str
    columns: frozenset[str]  # that it has
    address: str
    judge: Callable[[Row], Judged]
    lacks: frozenset[str] = frozenset()


def _bounce(*columns: str) -> Callable[[Row], Judged]:
    """Judge by the codes and texts in these columns, as the webhooks' bounces are judged."""

    def judge(row: Row) -> Judged:
        return R.HARD_BOUNCE if blames_address(*(row.get(name, "") for name in columns)) else OTHER_CAUSE

    return judge


def _by_word(column: str, words: Mapping[str, R]) -> Callable[[Row], Judged]:
    return lambda row: words.get(row[column].lower(), BY_HAND)


def _complaint(row: Row) -> Judged:
    return R.COMPLAINT


#: The first one that fits counts.
FORMATS = (
    Format(
        "postmark",
        frozenset({"emailaddress", "suppressionreason"}),
        "emailaddress",
        _by_word("suppressionreason", {"hardbounce": R.HARD_BOUNCE, "spamcomplaint": R.COMPLAINT}),
    ),
    Format(
        "ses",
        frozenset({"emailaddress", "reason", "lastupdatetime"}),
        "emailaddress",
        _by_word("reason", {"bounce": R.HARD_BOUNCE, "complaint": R.COMPLAINT}),
    ),
    Format("sendgrid", frozenset({"email", "status", "reason"}), "email", _bounce("status", "reason")),
    Format("sendgrid", frozenset({"email", "ip", "created"}), "email", _complaint),
    Format("mailgun", frozenset({"address", "code", "error"}), "address", _bounce("code", "error")),
    Format("mailgun", frozenset({"address", "createdat"}), "address", _complaint, frozenset({"tag", "tags"})),
)
_KNOWN = (
    "Use an export of SendGrid (bounces, spam reports), Amazon SES (list-suppressed-destinations), Postmark"
    " (suppressions dump) or Mailgun (bounces, complaints), as CSV or JSON. Lists of unsubscribed addresses"
    " are not read: whoever left a newsletter still wants to hear of an order."
)


class Summary:
    """The counts of a file's entries, by what was done with them."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.reasons: Counter[str] = Counter()
        self.new = 0
        self.left_out: Counter[str] = Counter()
        #: What is wrong with entries -> their number, and the first numbers of lines or places in the list.
        self.unusable: Counter[str] = Counter()
        self.first_unusable: dict[str, list[int]] = defaultdict(list)

    def leave_out(self, number: int, what: str) -> None:
        self.unusable[what] += 1
        if len(self.first_unusable[what]) < MOST_LINES:
            self.first_unusable[what].append(number)


def load_file(path: Path, *, by: Actor, dry_run: bool) -> Summary:
    """Suppress the addresses of a file, a thousand at a time, and return what it had.

    Addresses that are suppressed already keep their reason. The whole file is read before anything is
    written: raise `UnknownFile` with nothing changed. A file that is read again after a crash changes nothing
    that the first time changed.
    """
    read = _reader(path)
    first = next(read(), None)
    if first is None:
        raise UnknownFile(f"The file has no entries. {_KNOWN}")
    format = _format_of(first[1])
    summary = Summary(format.provider)
    for _ in _judge_rows(read(), format, Summary(format.provider)):
        pass
    judged = _judge_rows(read(), format, summary)
    while batch := list(itertools.islice(judged, BATCH)):
        _load(batch, summary, by=by, dry_run=dry_run)
    return summary


def _judge_rows(
    rows: Iterable[tuple[int, Row]], format: Format, summary: Summary
) -> Iterator[SuppressionReason | None]:
    """Yield for each entry the reason to suppress its address, or None, and count what it is."""
    for number, row in rows:
        if not format.columns <= row.keys():
            summary.leave_out(number, "without all of their columns")
            yield None
            continue
        try:
            email = read_address(row[format.address].strip())
        except NotAnAddress:
            summary.leave_out(number, "without a usable address")
            yield None
            continue
        judged = format.judge(row)
        if isinstance(judged, R):
            summary.reasons[judged] += 1
            yield SuppressionReason(email, judged, format.provider)
        else:
            summary.left_out[judged] += 1
            yield None


def _load(batch: Iterable[SuppressionReason | None], summary: Summary, *, by: Actor, dry_run: bool) -> None:
    causes: dict[str, SuppressionReason] = {}
    for cause in filter(None, batch):
        causes.setdefault(address_hash(cause.recipient_email), cause)
    before = Suppression.objects.filter(address_hash__in=causes).values_list("address_hash", flat=True)
    stored = set(before)
    new = [cause for hash, cause in causes.items() if hash not in stored]
    summary.new += len(new)
    if new and not dry_run:
        said = f"Suppressed {len(new)} addresses of a list of {summary.provider}."
        with transaction.atomic():
            suppress(new)
            record(AuditRow(kind=AuditRow.Kind.SUPPRESSION, act=said, subject="suppressions"), by=by)


def _format_of(row: Row) -> Format:
    for format in FORMATS:
        if format.columns <= row.keys() and not format.lacks & row.keys():
            return format
    raise UnknownFile(f"The file has the columns {', '.join(row)[:200] or 'of none'}. {_KNOWN}")


def _reader(path: Path) -> Callable[[], Iterator[tuple[int, Row]]]:
    """Return a function that yields each entry with its number: of its line in CSV, or its place from 1."""
    with path.open("rb") as file:
        is_json = file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"[", b"{")
    most = MOST_JSON_BYTES if is_json else MOST_CSV_BYTES
    if path.stat().st_size > most:
        raise UnknownFile(f"A {'JSON' if is_json else 'CSV'} file has at most {most:,} bytes. Split it.")
    if not is_json:
        return lambda: _read_csv(path)
    entries = _parse(path)
    return lambda: _read_json(entries)


def _read_csv(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(_lines(file))
        try:
            names = [_plain(name) for name in next(reader, [])]
            for values in reader:
                if values:
                    yield reader.line_num, dict(zip(names, values, strict=False))
        except UnicodeDecodeError:
            raise _not_utf8() from None
        except csv.Error as error:
            raise UnknownFile(f"The file cannot be read: {error}, in line {reader.line_num}.") from None


def _lines(file: IO[str]) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise UnknownFile(
                f"The file cannot be read: line {number} is longer than {LONGEST_LINE:,} characters."
            )
        yield line


def _parse(path: Path) -> list[Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise _not_utf8() from None
    except RecursionError:
        raise UnknownFile("The file cannot be read: it is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise UnknownFile(f"The file cannot be read: {error}.") from None
    except ValueError:  # of a number with thousands of digits
        raise UnknownFile("The file cannot be read: it has a number of thousands of digits.") from None
    if isinstance(document, dict):  # an answer of an API: its list is its only one
        lists = [value for value in document.values() if isinstance(value, list)]
        document = lists[0] if len(lists) == 1 else []
    return document if isinstance(document, list) else []


def _read_json(entries: Iterable[Any]) -> Iterator[tuple[int, Row]]:
    for number, entry in enumerate(entries, 1):
        values: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
        yield number, {_plain(name): "" if value is None else str(value) for name, value in values.items()}


def _not_utf8() -> UnknownFile:
    return UnknownFile("The file is not in UTF-8.")


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "").replace(" ", "")
