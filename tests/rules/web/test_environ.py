"""A request of Granian becomes the environment that WSGI describes."""

from __future__ import annotations

import dataclasses

from web.front.environ import make_environ


class Headers:
    """Granian's: it hides the values with other bytes than visible ASCII, and lower-cases names."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self._pairs = [(name.lower(), value) for name, value in pairs]

    def items(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self._pairs if value.isascii()]

    def keys(self) -> list[str]:
        return list(dict(self._pairs))

    def __len__(self) -> int:
        return len(dict(self._pairs))


@dataclasses.dataclass
class Asked:
    headers: Headers
    path: str = "/api/v1/orders"
    query_string: str = ""
    method: str = "POST"
    client: str = "203.0.113.9:4711"
    server: str = "127.0.0.1:8000"
    http_version: str = "1.1"
    scheme: str = "http"
    authority: str | None = None


def environ(*pairs: tuple[str, str], **fields: str) -> dict[str, object]:
    return make_environ(Asked(Headers(*pairs), **fields))


def test_it_has_what_django_reads():
    made = environ(
        ("Host", "shop.example"),
        ("Content-Type", "application/json"),
        ("Content-Length", "2"),
        ("X-New", "1"),
    )
    expected = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/api/v1/orders",
        "QUERY_STRING": "",
        "SCRIPT_NAME": "",
        "REMOTE_ADDR": "203.0.113.9",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "shop.example",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": "2",
        "HTTP_X_NEW": "1",
        "wsgi.url_scheme": "http",
    }
    assert {name: made.get(name) for name in expected} == expected


def test_a_header_with_an_underscore_is_left_out_because_it_would_pass_for_another():
    made = environ(("X_Forwarded_For", "1.1.1.1"), ("Idempotency_Key", "k"), ("Content_Length", "5"))
    assert not {"HTTP_X_FORWARDED_FOR", "HTTP_IDEMPOTENCY_KEY", "CONTENT_LENGTH"} & set(made)


def test_equal_headers_are_joined_by_a_comma_and_cookies_by_a_semicolon():
    made = environ(("A", "1"), ("Cookie", "a=1"), ("A", "2"), ("Cookie", "b=2"))
    assert (made["HTTP_A"], made["HTTP_COOKIE"]) == ("1,2", "a=1;b=2")


def test_a_value_of_other_bytes_than_ascii_is_empty_and_not_missing():
    made = environ(("Idempotency-Key", "schlüssel"), ("CE-Subject", "ä"))
    assert (made["HTTP_IDEMPOTENCY_KEY"], made["HTTP_CE_SUBJECT"]) == ("", "")


def test_other_characters_in_a_path_are_those_of_wsgi():
    made = environ(path="/connect/käse", query_string="q=ä")
    assert str(made["PATH_INFO"]).encode("latin-1").decode() == "/connect/käse"
    assert str(made["QUERY_STRING"]).encode("latin-1").decode() == "q=ä"


def test_an_address_of_ipv6_and_a_request_without_a_host():
    made = environ(client="[2001:db8::1]:80", server="[::]:8000", authority="shop.example")
    assert (made["REMOTE_ADDR"], made["SERVER_NAME"], made["HTTP_HOST"]) == (
        "2001:db8::1",
        "::",
        "shop.example",
    )


def test_one_environment_knows_nothing_of_another():
    environ(("X-A", "1"))
    assert "HTTP_X_A" not in environ()
