"""The URLs of a database with one server or with several, and of the archives."""

from __future__ import annotations

import pytest

from config.addresses import parse_archive, parse_database


def test_one_server_is_parsed_as_ever():
    database = parse_database("postgresql://shop:p%40ss@db:5433/orders?sslmode=require")
    wanted = {"USER": "shop", "PASSWORD": "p@ss", "HOST": "db", "PORT": 5433, "NAME": "orders"}
    assert {name: database[name] for name in wanted} == wanted
    assert database["OPTIONS"] == {"sslmode": "require"}


@pytest.mark.parametrize(
    ("servers", "host", "port"),
    [
        ("db1:5432,db2:5433", "db1,db2", "5432,5433"),
        ("db1,db2", "db1,db2", "5432,5432"),
        ("db1,db2:6432", "db1,db2", "5432,6432"),
        ("[::1]:5433,10.0.0.7", "::1,10.0.0.7", "5433,5432"),
    ],
)
def test_several_servers_become_lists_and_the_writable_one_is_wanted(servers, host, port):
    database = parse_database(f"postgresql://shop:p%40,s%2Fs@{servers}/orders?sslmode=require")
    assert (database["HOST"], database["PORT"]) == (host, port)
    assert (database["USER"], database["PASSWORD"], database["NAME"]) == ("shop", "p@,s/s", "orders")
    assert database["OPTIONS"] == {"sslmode": "require", "target_session_attrs": "read-write"}


def test_a_comma_in_a_password_is_no_list():
    database = parse_database("postgresql://shop:a,b@db/orders")
    assert (database["PASSWORD"], database["HOST"]) == ("a,b", "db")


def test_what_the_url_wants_of_a_server_is_kept():
    database = parse_database("postgresql://db1,db2/orders?target_session_attrs=primary")
    assert database["OPTIONS"] == {"target_session_attrs": "primary"}


@pytest.mark.parametrize("servers", ["db1:port,db2", "db1,", ",db2", "db1:1:2,db2", "[::1,db2"])
def test_a_server_that_is_none_is_refused_without_the_password(servers):
    with pytest.raises(ValueError, match="Each of its servers must be") as caught:
        parse_database(f"postgresql://shop:secret@{servers}/orders")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "bucket", "location", "endpoint"),
    [
        ("s3://archive", "archive", "", None),
        ("s3://archive/shop/two%20words/", "archive", "shop/two words", None),
        (
            "s3://archive/shop?endpoint_url=https://s3.example.com:9000",
            "archive",
            "shop",
            "https://s3.example.com:9000",
        ),
    ],
)
def test_archives_may_be_in_a_bucket(url, bucket, location, endpoint):
    storage = parse_archive(url)
    assert storage["BACKEND"] == "storages.backends.s3.S3Storage"
    wanted = {"bucket_name": bucket, "location": location, "endpoint_url": endpoint, "file_overwrite": True}
    assert storage["OPTIONS"] == wanted


def test_archives_may_be_in_a_folder_that_only_its_owner_reads():
    storage = parse_archive("file:///srv/two%20words")
    assert storage["OPTIONS"] == {
        "location": "/srv/two words",
        "directory_permissions_mode": 0o700,
        "file_permissions_mode": 0o600,
    }
