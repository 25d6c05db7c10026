"""Archived rows are found by address and by order, whatever happened to the index beside the archive."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import shutil
import threading
import uuid
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
import zstandard
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage
from django.core.management import CommandError, call_command
from django.db import connection, connections

from notifications.models import EmailNotification
from outbox.database.ids import id_floor, new_id
from outbox.models import DetachedPartition, OutboxEvent
from outbox.privacy import address_hash
from outbox.retention import rollover
from outbox.retention.archives import archive, files, restore
from outbox.retention.archives.index import Index
from outbox.retention.archives.index_build import build
from outbox.retention.archives.manifest import ArchiveDiffers, Manifest
from outbox.retention.archives.pieces import PIECE, pack, unpack
from outbox.retention.partitions.locks import exclusive_lock
from tests.outbox.retention.months import Steps, dsn, fill, make_partition

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
#: A month as release 0.1.0 archived it, and one with its index as commit 8616d9e did, written by their code.
OLD_FORMATS = {name: Path(__file__).parent / name for name in ("release_0_1_0", "commit_8616d9e")}
ANN, BOB = "ann@example.com", "bob@example.com"


@pytest.fixture
def old():
    """Make the partition of a month that is long over."""
    return make_partition(EmailNotification, back=4)


def roll() -> Steps:
    steps = Steps()
    result = rollover.rollover(report=steps)
    assert not (result.held or result.failed or result.waiting)
    return steps


def find(*what: str) -> list[dict[str, str]]:
    """Run `archive find`, and return the rows that it prints."""
    out = StringIO()
    call_command("archive", "find", *what, stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def ids(rows: list[dict[str, str]]) -> set[str]:
    return {row["id"] for row in rows}


def index_file(folder: Path) -> Path:
    (path,) = folder.rglob("email_notifications_p*.index")
    return path


def read_whole(monkeypatch) -> list[str]:
    """Note which archives are read from end to end."""
    names: list[str] = []
    real = files.read_csv

    def noted(*, manifest, **options):
        names.append(manifest.partition)
        return real(manifest=manifest, **options)

    monkeypatch.setattr(files, "read_csv", noted)
    return names


def event_in(day, *, order: uuid.UUID, event_type: str = "order.order.paid.v1", **payload: str) -> str:
    when = day.since + dt.timedelta(hours=1)
    event = OutboxEvent.objects.create(
        id=uuid.UUID(int=id_floor(when).int | (7 << 76) | (2 << 62) | random.getrandbits(60)),
        created_at=when,
        published_at=when,
        aggregate_type="order",
        aggregate_id=order,
        event_type=event_type,
        sequence=1,
        payload=payload,
        shard=1,
    )
    return str(event.id)


class TestFind:
    def test_by_address_gives_its_emails_in_any_case_and_the_events_of_their_orders(self, old, monkeypatch):
        order = new_id()
        fill(old, 20)
        (mail,) = fill(
            old, 1, recipient_email="Ann@Example.com", order_id=order, idempotency_key="ann", to_name="x"
        )
        day = make_partition(OutboxEvent, back=12)
        event = event_in(day, order=order)
        event_in(day, order=new_id())
        quoting = event_in(
            day, order=new_id(), event_type="payment.v1.dlt", originalEvent='{"to": "ANN@example.com"}'
        )
        roll()
        whole = read_whole(monkeypatch)
        assert ids(find(ANN)) == {str(mail), event, quoting}
        assert ids(find(ANN, "--table", "outbox_events")) == {event, quoting}
        assert ids(find(str(order).upper())) == {str(mail), event}
        assert find("nobody@example.com") == [] == find(str(new_id()))
        assert whole == []

    @pytest.mark.parametrize("text", ["ann@EXÄMPLE.com", "ANN@xn--exmple-cua.com"])
    def test_by_address_or_its_column_reads_every_spelling_of_a_domain(self, old, text):
        (mail,) = fill(old, 1, recipient_email="Ann@xn--exmple-cua.com", to_name="x")
        day = make_partition(OutboxEvent, back=12)
        quoting = event_in(
            day, order=new_id(), event_type="payment.v1.dlt", originalEvent='{"to": "Ann@Exämple.com"}'
        )
        roll()
        assert ids(find(text)) == {str(mail), quoting}
        assert ids(find(f"recipient_email={text}")) == {str(mail)}

    def test_by_columns_reads_by_the_index_where_one_of_them_is_indexed(self, old, monkeypatch):
        fill(old, 20)
        fill(old, 1, recipient_email=ANN, idempotency_key="ann", to_name="x", event_type="order.placed")
        (mail,) = fill(make_partition(EmailNotification, back=5), 1, recipient_email=ANN)
        roll()
        whole = read_whole(monkeypatch)
        assert ids(find("recipient_email=ANN@example.com", "event_type=order.paid")) == {str(mail)}
        assert whole == []
        assert len(find("to_name=alice")) == 21
        assert len(whole) == 2

    def test_since_leaves_out_older_archives(self, old):
        fill(old, 1)
        assert roll()
        assert len(find("alice@example.com")) == 1
        assert find("alice@example.com", "--since", old.until.date().isoformat()) == []

    @pytest.mark.parametrize("what", ["ann", "nonsense=1"])
    def test_refuses_what_it_cannot_search(self, what):
        with pytest.raises(CommandError):
            find(what)

    def test_finds_every_row_of_an_archive_of_many_pages_and_pieces(self, old, monkeypatch):
        """Rows of many lengths, so that pages and pieces end at different places."""
        chance = random.Random(1)
        many = fill(old, 120, body="")
        for number, id in enumerate(many):
            body = "".join(chance.choices('ab"\n,é\r\\', k=chance.choice([10, 30_000, 90_000])))
            EmailNotification.objects.filter(id=id).update(
                body=body, recipient_email=f"user{number}@example.com"
            )
        roll()
        record = DetachedPartition.objects.get()
        index = Index(model=EmailNotification, manifest=Manifest.of(record))
        assert len(index._frames) > 3 and len(index._pages) > 10
        wanted = {row["id"]: row for row in archive.find_rows(record=record, wanted=lambda row: True)}
        assert len(wanted) == 120
        whole = read_whole(monkeypatch)
        for number, id in list(enumerate(many))[::7]:
            (row,) = find(f"user{number}@example.com")
            assert row == {"archive": old.name, **wanted[str(id)]}
        assert whole == []


class TestIndex:
    def test_has_neither_addresses_nor_ids_in_it(self, old, archive_folder):
        order = new_id()
        fill(old, 3, recipient_email=ANN, order_id=order)
        roll()
        data = index_file(archive_folder).read_bytes()
        assert b"ann" not in data and order.bytes not in data and str(order).encode() not in data
        assert bytes.fromhex(address_hash(ANN)) not in data

    @pytest.mark.parametrize("damage", ["lose", "empty", "cut", "header", "records", "other archive"])
    def test_that_is_lost_or_damaged_hides_no_row_and_is_made_again(self, old, archive_folder, damage):
        fill(old, 30)
        (mail,) = fill(old, 1, recipient_email=ANN, idempotency_key="ann", to_name="x")
        roll()
        path = index_file(archive_folder)
        good = path.read_bytes()
        bad = {
            "empty": b"",
            "cut": good[:-8],
            "header": good[:30] + bytes([good[30] ^ 1]) + good[31:],
            "records": good[:-5] + bytes([good[-5] ^ 1]) + good[-4:],
            "other archive": good[:16] + bytes(32) + good[48:],
        }
        path.unlink() if damage == "lose" else path.write_bytes(bad[damage])
        record = DetachedPartition.objects.get()
        hashes = [address_hash(ANN)]
        rows = archive.find_rows(
            record=record, wanted=lambda row: row["recipient_email"] == ANN, hashes=hashes
        )
        assert ids(list(rows)) == {str(mail)}  # by reading all
        assert ids(find(ANN)) == {str(mail)}
        assert path.read_bytes() == good

    def test_of_another_key_is_made_again(self, old, archive_folder, settings):
        (mail,) = fill(old, 1)
        roll()
        before = index_file(archive_folder).read_bytes()
        settings.PRIVACY_KEY = "another"
        assert ids(find("alice@example.com")) == {str(mail)}
        assert index_file(archive_folder).read_bytes() != before
        assert roll() == []

    def test_is_not_written_while_somebody_changes_archives(self, old, archive_folder, capsys):
        (mail,) = fill(old, 1)
        roll()
        index_file(archive_folder).unlink()
        with psycopg.connect(dsn(), autocommit=True) as other:
            other.execute("SELECT pg_advisory_lock(hashtext('retire:email_notifications'))")
            assert ids(find("alice@example.com")) == {str(mail)}
        assert list(archive_folder.rglob("*.index")) == []
        assert "not indexed" in capsys.readouterr().err

    def test_is_no_condition_of_reading_where_the_store_takes_no_file(self, old, archive_folder, monkeypatch):
        (mail,) = fill(old, 1)
        roll()
        index_file(archive_folder).unlink()

        def refuse(*args, **options):
            raise PermissionError("read-only")

        monkeypatch.setattr(FileSystemStorage, "save", refuse)
        assert ids(find("alice@example.com")) == {str(mail)}

    def test_two_searches_at_once_make_it_and_find_the_same(self, old, archive_folder):
        (mail,) = fill(old, 1)
        roll()
        index_file(archive_folder).unlink()
        found: list[set[str]] = []

        def search() -> None:
            try:
                found.append(ids(find("alice@example.com")))
            finally:
                connections.close_all()

        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [{str(mail)}] * 4
        assert ids(find("alice@example.com")) == {str(mail)}

    def test_of_a_damaged_archive_is_not_made(self, old, archive_folder):
        fill(old, 1)
        roll()
        index_file(archive_folder).unlink()
        (path,) = archive_folder.rglob("*.zst")
        data = path.read_bytes()
        path.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
        with exclusive_lock(model=EmailNotification), pytest.raises(ArchiveDiffers):
            build(model=EmailNotification, record=DetachedPartition.objects.get())
        assert list(archive_folder.rglob("*.index")) == []


@pytest.mark.parametrize("written_by", OLD_FORMATS)
class TestOldFormats:
    """Archives of one frame. Commit 8616d9e compressed it in jobs that its index named."""

    @pytest.fixture
    def record(self, archive_folder, written_by) -> DetachedPartition:
        shutil.copytree(OLD_FORMATS[written_by], archive_folder)
        (document,) = archive_folder.rglob("*.json")
        manifest = json.loads(document.read_text())
        since, until = (dt.datetime.fromisoformat(manifest[name]) for name in ("since", "until"))
        return DetachedPartition.objects.create(
            name=manifest["partition"],
            table=manifest["table"],
            since=since,
            until=until,
            detached_at=until,
            archived_at=until,
            dropped_at=until,
            manifest=manifest,
        )

    def test_are_indexed_by_the_next_rollover_and_found(self, record, archive_folder, monkeypatch):
        assert roll() == ["indexed"]
        assert roll() == []
        assert index_file(archive_folder).read_bytes().startswith(b"opindex2")
        whole = read_whole(monkeypatch)
        rows = find("user7@example.com")
        assert [row["to_name"] for row in rows] == ["User 7", "User 27"]
        assert rows[0]["body"].startswith("<p>Order 7\r\n</p>") and "é" in rows[0]["body"]
        assert [row["to_name"] for row in find(str(uuid.UUID(int=3 | (4 << 76) | (2 << 62))))] == [
            "User 6",
            "User 7",
        ]
        assert whole == []

    def test_are_indexed_by_the_first_search(self, record, archive_folder):
        assert len(find("user7@example.com")) == 2
        assert index_file(archive_folder).read_bytes().startswith(b"opindex2")

    def test_are_searched_without_an_index_that_nobody_may_write(self, record, monkeypatch):
        def refuse(*args, **options):
            raise PermissionError("read-only")

        monkeypatch.setattr(FileSystemStorage, "save", refuse)
        whole = read_whole(monkeypatch)
        assert len(find("user7@example.com")) == 2
        assert whole.count(record.name) == 2  # for an index that cannot be stored, and for the search

    def test_are_verified_and_restored(self, record):
        call_command("partitions", "verify", record.name)
        table = restore.restore(record=record)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT count(*), max(subject) FROM {table}")
            assert cursor.fetchone() == (40, 'Order 9, "paid"')

    def test_are_written_in_frames_by_an_erasure(self, record, archive_folder, capsys):
        before = {row["id"]: row for row in archive.find_rows(record=record, wanted=lambda row: True)}
        erased = ids(find("user7@example.com"))
        call_command("privacy", "erase", "--email", "user7@example.com", "--now")
        record.refresh_from_db()
        (path,) = archive_folder.rglob("*.zst")
        bounds: list[tuple[int, int]] = []
        assert b"".join(unpack([path.read_bytes()], bounds)).count(b"user7@example.com") == 0
        assert len(bounds) == 1 + -(-record.manifest["csv_bytes"] // PIECE)
        after = {row["id"]: row for row in archive.find_rows(record=record, wanted=lambda row: True)}
        assert {id for id in before if before[id] != after[id]} == erased and len(after) == 40
        assert find("user7@example.com") == [] and len(find("user8@example.com")) == 2


def packed(data: bytes) -> bytes:
    return b"".join(pack(data[at : at + 70_001] for at in range(0, len(data), 70_001)))


class TestPieces:
    @pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 5 * PIECE // 2])
    def test_are_frames_that_are_read_together_or_alone(self, size):
        data = (random.Random(size).randbytes(1000) * (size // 1000 + 1))[:size]
        file = packed(data)
        bounds: list[tuple[int, int]] = []
        assert b"".join(unpack([file[at : at + 999] for at in range(0, len(file), 999)], bounds)) == data
        assert [begin for begin, _ in bounds] == [*range(0, size, PIECE), size]
        for (begin, start), (end, after) in itertools.pairwise(bounds):
            assert b"".join(unpack([file[start:after]])) == data[begin:end]

    @pytest.mark.parametrize("size", [PIECE, 2 * PIECE, 5 * PIECE // 2])
    def test_are_one_file_to_the_reader_of_release_0_1_0(self, size):
        """Verify and restore read in chunks, and search line by line (docs/guides/upgrade.md)."""
        data = (random.Random(size).randbytes(1000) * (size // 1000 + 1))[:size]
        unpacker = zstandard.ZstdDecompressor()
        reader = unpacker.stream_reader(BytesIO(packed(data)))
        assert b"".join(iter(lambda: reader.read(1 << 20), b"")) == data
        lines = TextIOWrapper(unpacker.stream_reader(BytesIO(packed(data))), encoding="latin-1", newline="")
        assert "".join(lines).encode("latin-1") == data

    def test_of_several_megabytes_are_read_in_several_requests(self):
        """Of an old archive, whose frame is not small."""
        data = random.Random(1).randbytes(5 * PIECE // 2)
        file = zstandard.compress(data)
        files.save(name="emails/long.csv.zst", content=ContentFile(file))
        manifest = SimpleNamespace(file="emails/long.csv.zst")
        assert b"".join(files.read_frame(manifest=manifest, start=0, end=len(file))) == data

    @pytest.mark.parametrize("damage", ["cut", "more", "checksum", "magic", "a cut second one"])
    def test_of_which_one_is_damaged_are_refused(self, damage):
        good = packed(b"abc" * 100_000)
        bad = {
            "cut": good[:-5],
            "more": good + b"x",
            "checksum": good[:-1] + bytes([good[-1] ^ 1]),
            "magic": b"x" + good[1:],
            "a cut second one": good + good[:-1],
        }[damage]
        with pytest.raises(zstandard.ZstdError):
            list(unpack([bad]))
