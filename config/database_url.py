"""Parse the URLs of a database and of the archive.

A database's URL may name several servers: `postgresql://user@a:5432,b:5432/name`.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import dj_database_url

_URL = re.compile(
    r"(?P<before>[a-z]+://(?:[^/?#]*@)?)(?P<servers>[^/?#@]*,[^/?#@]*)(?P<after>(?:[/?#].*)?)", re.DOTALL
)
_SERVER = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:,]+))(?::(?P<port>\d{1,5}))?")
DEFAULT_PORT = "5432"


def parse_database(url: str, *, prefer: str = "read-write") -> dict[str, Any]:
    """Return Django's settings of a database. With several servers, HOST and PORT are lists with commas.

    Then the client connects to one that is `prefer` (of libpq), unless `target_session_attrs` says otherwise.
    Raise `ValueError` without the URL and its password in the text.
    """
    several = _URL.fullmatch(url)
    if several is None:
        return dict(dj_database_url.parse(url))
    servers = [_SERVER.fullmatch(text) for text in several["servers"].split(",")]
    named = [server for server in servers if server]
    if len(named) < len(servers):
        raise ValueError("Each of its servers must be host or host:port, such as db1:5432,db2:5432.")
    database: dict[str, Any] = dict(dj_database_url.parse(f"{several['before']}server{several['after']}"))
    database["HOST"] = ",".join(server["ipv6"] or server["host"] for server in named)
    database["PORT"] = ",".join(server["port"] or DEFAULT_PORT for server in named)
    database.setdefault("OPTIONS", {}).setdefault("target_session_attrs", prefer)
    return database


def parse_archive(url: str) -> dict[str, Any]:
    """Return Django's storage for `file:///folder` or `s3://bucket/prefix?endpoint_url=https://host`.

    boto3 finds the credentials of a bucket. Raise `ValueError` for any other URL.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    endpoint = options.pop("endpoint_url", None)
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("Percent-encode the folder as UTF-8.") from None
    if options or parts.fragment or "@" in parts.netloc:
        raise ValueError("The only option is endpoint_url, and boto3 finds the credentials.")
    if parts.scheme == "file" and not parts.netloc and path.strip("/") and endpoint is None:
        return {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {
                "location": path,
                "directory_permissions_mode": 0o700,
                "file_permissions_mode": 0o600,
            },
        }
    if parts.scheme != "s3" or not parts.netloc:
        raise ValueError("Write file:///folder, or s3://bucket/prefix.")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ValueError("endpoint_url is not a web address, such as https://s3.example.com.")
    return {
        "BACKEND": "storages.backends.s3.S3Storage",
        "OPTIONS": {
            "bucket_name": parts.netloc,
            "location": path.strip("/"),
            "endpoint_url": endpoint,
            "file_overwrite": True,
        },
    }
