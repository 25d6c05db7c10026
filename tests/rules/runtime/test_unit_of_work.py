"""Saves wait for the end of their block, and travel with its COMMIT."""

from __future__ import annotations

import datetime as dt
import inspect
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import DataError, IntegrityError, OperationalError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from psycopg import _connection_base, _cursor_base, _preparing, generators

from runtime.database.postgres import cursor
from runtime.database.save import MOST_JOINED, has_failed_check, lock_row, save_together
from tests.kit.api import Api, make_token
from tests.kit.connections import ask, database_port
from tests.kit.cut import Cut
from tests.kit.orders import make_order, pay_order
from tests.kit.pgbouncer import Pooler, needs_pgbouncer
from tests.kit.races import broken
from tests.kit.trips import count_trips
from tests.kit.words import DomainEvent, EmailNotification, Order

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def order() -> Order:
    return make_order()


def rename(order: Order, name: str) -> Order:
    """Lock an order, and save another name of it, which is not sent yet."""
    locked, _ = lock_row(Order, order.id)
    assert locked is not None
    locked.name = name
    save_together(locked)
    return locked


def stored_name(order: Order) -> str:
    """Return the name as another session sees it."""
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(lambda: Order.objects.get(id=order.id).name).result()
        finally:
            pool.submit(connections.close_all).result()


def warm(work: Callable[[], object]) -> int:
    """Return the trips of some work whose statements are prepared."""
    for _ in range(3):
        trips = count_trips(work)
    return trips


class TestTrips:
    def test_a_save_alone_is_one_a_locked_row_two_and_an_empty_block_none(self, order):
        def insert() -> None:
            with transaction.atomic():
                save_together(new_order())

        def change() -> None:
            with transaction.atomic():
                rename(order, f"{uuid.uuid4()}")

        def nothing() -> None:
            with transaction.atomic():
                pass

        assert warm(insert) == 1
        assert warm(change) == 2
        assert warm(nothing) == 0

    def test_all_saves_since_the_last_statement_are_one(self, order):
        def work() -> None:
            with transaction.atomic():
                rename(order, f"{uuid.uuid4()}")
                save_together(new_order())
                save_together(new_order(), new_order())

        with CaptureQueriesContext(connection) as captured:
            work()
        saves = [query["sql"] for query in captured if query["sql"].startswith("WITH")]
        assert len(saves) == 1 and saves[0].count("INSERT INTO orders") == 3
        assert warm(work) == 2

    def test_a_row_that_is_saved_twice_has_both_changes(self, order):
        with transaction.atomic():
            locked = rename(order, "first")
            locked.reference = "second"
            save_together(locked)
        assert Order.objects.values_list("name", "reference").get(id=order.id) == ("first", "second")

    def test_a_statement_has_at_most_so_many_joined_writes(self):
        with CaptureQueriesContext(connection) as captured, transaction.atomic():
            for _ in range(MOST_JOINED + 1):
                save_together(new_order())
        counts = [query["sql"].count("INSERT INTO") for query in captured if "INSERT" in query["sql"]]
        assert counts == [MOST_JOINED, 1] and Order.objects.count() == MOST_JOINED + 1

    @needs_pgbouncer
    def test_behind_a_pooler_each_statement_is_one_and_so_are_begin_and_commit(self, order, monkeypatch):
        with Pooler(server=database_port()) as pooler:
            monkeypatch.setitem(connection.settings_dict, "PORT", pooler.port)
            connection.close()
            try:
                api = Api(make_token())
                path = f"/api/v1/orders/{make_order().id}"
                assert connection.is_pooled
                assert count_trips(lambda: api.post(f"{path}/pay")) == 5
                assert Order.objects.filter(status="paid").count() == 1
                with pytest.raises(IntegrityError), transaction.atomic():
                    rename(order, "first")
                    save_together(new_order(id=order.id))
                assert stored_name(order) != "first"
            finally:
                connection.close()


PLACED: dict[str, Any] = {"user_id": "6f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11", "email": "ann@example.com"}
PLACED |= {"name": "Ann", "total_amount": 100, "currency": "EUR"}


def new_order(**values: Any) -> Order:
    now = dt.datetime.now(dt.UTC)
    return Order(**PLACED | {"created_at": now, "updated_at": now} | values)


class TestWhenItIsSent:
    def test_nothing_is_sent_before_the_block_has_ended_well(self, order):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            with CaptureQueriesContext(connection) as captured:
                rename(order, "poisoned")
            assert not any("UPDATE" in query["sql"] for query in captured if "FOR UPDATE" not in query["sql"])
            1 / 0  # noqa: B018
        assert stored_name(order) == order.name and connection.unsent is None

    @pytest.mark.parametrize("how", ["the model", "a cursor", "a cursor of before", "a COPY", "an iterator"])
    def test_the_next_statement_of_the_block_sees_it(self, order, how):
        sql = f"SELECT name FROM orders WHERE id = '{order.id}'"
        with transaction.atomic(), connection.cursor() as before:
            rename(order, "seen")
            match how:
                case "the model":
                    name = Order.objects.get(id=order.id).name
                case "a cursor":
                    name = ask(connection, sql)
                case "a cursor of before":
                    before.execute(sql)
                    (name,) = before.fetchone()
                case "a COPY":
                    with connection.cursor() as cursor, cursor.copy(f"COPY ({sql}) TO STDOUT") as copy:
                        name = b"".join(map(bytes, copy)).decode().strip()
                case _:
                    (name,) = Order.objects.filter(id=order.id).values_list("name", flat=True).iterator()
            assert name == "seen"
        assert stored_name(order) == "seen"

    def test_a_savepoint_keeps_what_was_saved_before_it_and_drops_what_came_after(self, order):
        other = make_order()
        with transaction.atomic():
            rename(order, "kept")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                rename(other, "dropped")
                1 / 0  # noqa: B018
        assert (stored_name(order), stored_name(other)) == ("kept", other.name)

    def test_a_savepoint_is_not_undone_by_sending_what_came_after_it(self, order):
        with transaction.atomic():
            rename(order, "kept")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                save_together(new_order(id=order.id))  # which would fail
                1 / 0  # noqa: B018
        assert stored_name(order) == "kept"

    def test_an_inner_block_without_a_savepoint_takes_all_with_it(self, order):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            rename(order, "dropped")
            with transaction.atomic(savepoint=False):
                save_together(new_order())
                1 / 0  # noqa: B018
        assert Order.objects.count() == 1 and stored_name(order) == order.name

    def test_a_block_within_a_transaction_that_began_without_one_is_sent_at_its_end(self, order):
        connection.set_autocommit(False)
        try:
            with transaction.atomic():
                rename(order, "manual")
            connection.rollback()
            assert stored_name(order) == order.name
            with transaction.atomic(savepoint=False):
                rename(order, "manual")
            connection.commit()
        finally:
            connection.set_autocommit(True)
        assert stored_name(order) == "manual"

    def test_outside_of_a_block_it_is_refused(self, order):
        with pytest.raises(RuntimeError, match="must be in the transaction"):
            save_together(order)

    def test_a_callback_after_the_commit_finds_it_and_may_save_in_a_block_of_its_own(self, order):
        names: list[str] = []

        def later() -> None:
            names.append(stored_name(order))
            with transaction.atomic():
                rename(order, "second")

        with transaction.atomic():
            rename(order, "first")
            transaction.on_commit(later)
        assert names == ["first"] and stored_name(order) == "second"

    def test_django_logs_each_statement_once_with_begin_and_commit(self, order):
        with CaptureQueriesContext(connection) as captured, transaction.atomic():
            rename(order, "logged")
        begin, lock, save, commit = (query["sql"] for query in captured)
        assert (begin, commit) == ("BEGIN", "COMMIT")
        assert "FOR UPDATE" in lock and "UPDATE orders SET name = 'logged'" in save


@pytest.mark.django_db
def test_the_block_of_a_test_case_is_left_open_and_reads_see_what_was_saved():
    order = make_order()
    with transaction.atomic(durable=True):
        rename(order, "seen")
    assert connection.unsent is None and connection.in_atomic_block
    assert Order.objects.get(id=order.id).name == "seen"


class TestErrors:
    def fail(self, order: Order) -> None:
        rename(order, "lost")
        save_together(new_order(id=order.id))

    @pytest.fixture
    def told(self) -> list[str]:
        return []

    @pytest.fixture(autouse=True)
    def _leaves_nothing(self, order, told):
        yield
        assert told == [], "a callback of a failed block was called"
        assert connection.unsent is None and not connection.in_atomic_block
        assert Order.objects.filter(name="lost").count() == 0
        with transaction.atomic():  # and the next block is as any other
            rename(order, "next")
        assert stored_name(order) == "next" and told == []

    @pytest.mark.parametrize("uses", [1, 3])
    def test_those_of_a_save_are_raised_at_the_end_of_the_block(self, order, told, uses):
        for _ in range(uses):
            with pytest.raises(IntegrityError) as caught, transaction.atomic():
                transaction.on_commit(lambda: told.append("told"))
                self.fail(order)
                is_at_end = True
            assert is_at_end and "orders_pkey" in str(caught.value)

    def test_those_of_an_inner_block_are_raised_at_its_end_and_undo_it_alone(self, order):
        other = make_order()
        with transaction.atomic():
            rename(other, "kept")
            with pytest.raises(IntegrityError), transaction.atomic():
                self.fail(order)
        assert stored_name(other) == "kept"

    def test_those_of_a_block_that_reads_are_raised_at_the_read(self, order):
        with pytest.raises(IntegrityError), transaction.atomic():
            self.fail(order)
            with pytest.raises(IntegrityError):
                Order.objects.count()
            raise IntegrityError

    @pytest.mark.parametrize("where", ["at the end", "before a statement", "at the end of an inner block"])
    def test_another_error_than_the_databases_undoes_all(self, order, told, where):
        """A lone surrogate cannot be encoded."""
        with pytest.raises(UnicodeEncodeError), transaction.atomic():
            transaction.on_commit(lambda: told.append("told"))
            rename(order, "lost")
            Order.objects.count()
            if where == "at the end of an inner block":
                with pytest.raises(UnicodeEncodeError), transaction.atomic():
                    save_together(new_order(name="\ud800"))
                raise UnicodeEncodeError("utf-8", "", 0, 1, "again")
            save_together(new_order(name="\ud800"))
            if where == "before a statement":
                with pytest.raises(UnicodeEncodeError):
                    Order.objects.count()
                with pytest.raises(TransactionManagementError):
                    Order.objects.count()
                raise UnicodeEncodeError("utf-8", "", 0, 1, "again")

    def test_a_save_after_a_failed_statement_is_refused_at_once(self, order):
        with pytest.raises(IntegrityError), transaction.atomic():
            locked = rename(order, "lost")
            with pytest.raises(IntegrityError), transaction.atomic(savepoint=False):
                self.fail(order)
                Order.objects.count()
            with pytest.raises(TransactionManagementError):
                save_together(locked)
            raise IntegrityError

    def test_a_save_after_the_connection_was_closed_is_refused_at_once(self, order):
        with transaction.atomic():
            locked = rename(order, "lost")
            connection.close()
            with pytest.raises(TransactionManagementError):
                save_together(locked)

    def test_a_check_that_does_not_hold_undoes_all(self, order, told):
        for _ in range(3):
            with pytest.raises(DataError) as caught, transaction.atomic():
                transaction.on_commit(lambda: told.append("told"))
                rename(order, "lost")
                save_together(check="%s = 2", values=["1"])
            assert has_failed_check(caught.value)
        with pytest.raises(DataError) as caught, transaction.atomic():
            ask(connection, "SELECT 'x'::boolean")
        assert not has_failed_check(caught.value)

    def test_those_of_a_deferred_constraint_are_raised_there_too(self, order, told):
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE strict (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
            cursor.execute("INSERT INTO strict VALUES (1)")
        try:
            for _ in range(3):
                with pytest.raises(IntegrityError), transaction.atomic():
                    transaction.on_commit(lambda: told.append("told"))
                    ask(connection, "INSERT INTO strict VALUES (1)")
                    rename(order, "lost")
        finally:
            ask(connection, "DROP TABLE strict")

    def test_a_server_that_refuses_writes_says_so_and_its_connection_is_closed(self, order):
        for _ in range(2):
            with pytest.raises(OperationalError, match="was closed") as caught, transaction.atomic():
                ask(connection, "SET TRANSACTION READ ONLY")
                save_together(new_order())
            assert caught.value.__cause__.sqlstate == "25006"


def test_a_connection_whose_answers_were_not_read_is_closed_at_once(order, monkeypatch):
    def interrupted(pgconn: Any) -> Any:
        yield from ()
        raise KeyboardInterrupt

    for _ in range(2):
        pay_order(order_id=make_order().id)
    with pytest.raises(KeyboardInterrupt), transaction.atomic():
        monkeypatch.setattr(cursor, "fetch_many", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock_row(Order, order.id)
        assert connection.connection.closed
        raise KeyboardInterrupt
    monkeypatch.undo()
    pay_order(order_id=order.id)


class TestSessionsThatEnd:
    """A payment whose session ends at each message, and is then repeated with its key."""

    def pay(self, cut: Cut | None, order: Order, messages: int, secret: str, monkeypatch) -> int:
        """Pay over a connection that ends after so many messages, and return the answer's status."""
        api = Api(secret)
        with monkeypatch.context() as patched:
            if cut is not None:
                patched.setitem(connection.settings_dict, "PORT", cut.port)
            connection.close()
            warming = [make_order() for _ in range(2)]
            for number, other in enumerate(warming):  # prepare the statements
                assert (
                    api.post(f"/api/v1/orders/{other.id}/pay", key=f"{other.id}{number}").status_code == 200
                )
            if cut is not None:
                cut.arm(messages)
            status: int = api.post(f"/api/v1/orders/{order.id}/pay", key=f"{order.id}").status_code
            connection.close()
        return status

    @pytest.mark.parametrize("is_server", [True, False])
    def test_a_cut_at_each_message_loses_and_doubles_nothing(self, monkeypatch, is_server):
        secret = make_token()
        outcomes: list[tuple[int, str]] = []
        for messages in range(40):
            order = make_order()
            with Cut(port=database_port(), is_server=is_server) as cut:
                status = self.pay(cut, order, messages, secret, monkeypatch)
            stored = Order.objects.get(id=order.id)
            outcomes.append((status, stored.status))
            assert status in (200, 503) and (status == 503 or stored.status == "paid")
            assert Api(secret).post(f"/api/v1/orders/{order.id}/pay", key=f"{order.id}").status_code == 200
            stored.refresh_from_db()
            assert (stored.status, stored.version) == ("paid", 2)
            emails = EmailNotification.objects.filter(order_id=order.id).values_list("event_type", flat=True)
            assert list(emails).count("order.paid") == 1
            assert DomainEvent.objects.filter(aggregate_id=order.id, sequence=2).count() == 1
            if status == 200 and cut._left:
                break
        assert status == 200, cut.passed
        assert (503, "pending") in outcomes and b"C" in cut.passed if is_server else True
        if is_server:  # COMMIT was executed, and its answer was lost
            assert (503, "paid") in outcomes

    @pytest.mark.parametrize("when", ["the statement", "COMMIT"])
    @pytest.mark.parametrize("how", ["ended by an administrator", "silent"])
    def test_a_session_that_ends_in_the_middle_undoes_all_and_says_why(self, order, monkeypatch, when, how):
        is_ended = how == "ended by an administrator"
        act = "pg_terminate_backend(pg_backend_pid())" if is_ended else "pg_sleep(60)"
        kind = "TRIGGER ends BEFORE" if when == "the statement" else "CONSTRAINT TRIGGER ends AFTER"
        deferred = "" if when == "the statement" else "DEFERRABLE INITIALLY DEFERRED"
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "deadline", 4.0 if is_ended else 1.0)
        connection.close()
        for _ in range(2):
            pay_order(order_id=make_order().id)
        with broken("inbound_dead_letters", f"PERFORM {act}"):
            ask(
                connection,
                f"CREATE {kind} UPDATE ON orders {deferred} FOR EACH ROW EXECUTE FUNCTION break_it()",
            )
            for is_prepared in (True, False):  # the second time it is a new session
                with pytest.raises(OperationalError) as caught:
                    pay_order(order_id=order.id)
                if is_ended:
                    assert caught.value.__cause__.sqlstate == "57P01", (is_prepared, caught.value)
                else:
                    assert "did not answer within 1 s" in str(caught.value)
                    asleep = "FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
                    ask(connection, f"SELECT pg_terminate_backend(pid, 5000) {asleep}")
                order.refresh_from_db()
                assert (order.status, order.version) == ("pending", 1)
        pay_order(order_id=order.id)
        order.refresh_from_db()
        assert (order.status, order.version) == ("paid", 2)


class TestPrivateNames:
    """Of psycopg, on which the backend depends. If one fails, read what the new release changed."""

    def test_a_rollback_clears_the_manager_of_prepared_statements(self):  # since 3.1
        source = inspect.getsource(_connection_base.BaseConnection._rollback_gen)
        assert "self._prepared.clear()" in source and "self._prepared.maintain_gen(self)" in source

    def test_a_manager_keeps_names_by_text_and_types_and_rotates_them(self):  # 3.3 renamed `prepare_max`
        manager = _preparing.PrepareManager()
        assert {"_counts", "_names", "_to_flush"} <= vars(manager).keys()
        assert list(inspect.signature(manager.validate).parameters) == ["key", "prep", "name", "results"]
        assert list(inspect.signature(manager._rotate).parameters) == []

    def test_a_cursor_begins_prepares_and_sends_by_these_generators(self):  # since 3.1
        cursor = _cursor_base.BaseCursor
        assert "self._conn._start_query()" in inspect.getsource(cursor._start_query)
        source = inspect.getsource(cursor._execute_gen)
        assert source.index("_start_query(query)") < source.index("_maybe_prepare_gen(pgq, prepare=prepare")
        for name in ("_get_prepared", "_send_query_prepared", "_set_results"):
            assert f"self.{name}(" in inspect.getsource(cursor._maybe_prepare_gen)

    def test_a_transaction_begins_by_this_command_and_a_commit_while_idle_sends_nothing(self):  # since 3.1
        connection.ensure_connection()
        connection.set_autocommit(False)
        try:
            assert connection.connection._get_tx_start_command() == b"BEGIN"
            assert count_trips(connection.commit) == 0
        finally:
            connection.set_autocommit(True)

    def test_the_answers_of_a_pipeline_come_one_statement_at_a_time(self):  # since 3.1
        assert "PIPELINE_SYNC" in inspect.getsource(generators._fetch_many)
