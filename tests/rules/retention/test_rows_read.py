"""The export and the erasure of a person read few rows of the stored texts, however many there are."""

from __future__ import annotations

import pytest
from django.db import connection

from retention.person import Person
from retention.texts_of_person import erase_texts, export_texts
from tests.kit.plans import plan_of, statements
from tests.kit.words import address_hash, new_id

COUNT, MINE = 5000, 3
COLUMNS = "order_id, address_hashes"
INSERTS = {
    "idempotency_keys": "(scope, key, request_hash, answer_body, answer_location, {0})"
    " SELECT 's', gen_random_uuid(), '', '{{}}', '', {1}",
    "inbound_dead_letters": "(id, topic, key, event_id, consumer, envelope, error, {0})"
    " SELECT gen_random_uuid(), 't', '', gen_random_uuid(), 'c', '', '', {1}",
    "connection_posts": "(id, source, body, {0}) SELECT gen_random_uuid(), 's', '', {1}",
}


@pytest.mark.django_db
@pytest.mark.parametrize("do", [export_texts, erase_texts])
@pytest.mark.parametrize("table", INSERTS)
def test_the_rows_of_a_person_are_found_by_two_indexes(table, do):
    person = Person.of("ann@example.com", frozenset([new_id() for _ in range(MINE)]))
    insert = f"INSERT INTO {table} {INSERTS[table]}"
    other = "gen_random_uuid(), jsonb_build_array(md5(n::text), md5((n / 2)::text || 'b'))"
    with connection.cursor() as cursor:
        cursor.execute(insert.format(COLUMNS, other) + f" FROM generate_series(1, {COUNT}) AS n")
        for id in person.owner_ids:
            cursor.execute(insert.format(COLUMNS, "%s, '[]'"), [id])
        for _ in range(MINE):
            cursor.execute(
                insert.format(COLUMNS, "NULL, jsonb_build_array(%s::text)"), [address_hash(person.address)]
            )
        # As autovacuum does: PostgreSQL collects new entries of such an index in a list.
        cursor.execute("SELECT gin_clean_pending_list(%s::regclass)", [f"{table}_addresses"])
        cursor.execute(f"ANALYZE {table}")
    with statements(at_most=20) as texts:
        do(person=person)
    (statement,) = (text for text in texts if f" {table} " in text and "order_id = ANY" in text)
    plan = plan_of(statement)
    assert {f"{table}_order", f"{table}_addresses"} <= plan.indexes
    assert plan.visited <= 10 * MINE
