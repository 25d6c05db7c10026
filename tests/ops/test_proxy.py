"""docker/proxy/nginx.conf in Debian's nginx, before a real web process that trusts it.

Clients have the address 127.0.0.2 or ::1, and the proxy has 127.0.0.1. It believes another one at 127.0.0.9.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from local.machine import HOST, PROJECT, account_for_postgres, free_port, guarded, is_free
from tests.kit.certificates import make_authority
from tests.kit.needs import needs
from tests.kit.shop import SIGNS, Shop
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import PROBES, mask_address, sign
from web.api.problem_types import TOO_LARGE
from web.proxies import counts_as

PROGRAM = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
CONFIGURATION = PROJECT / "docker" / "proxy" / "nginx.conf"
PAGE = PROJECT / "docs" / "guides" / "one-machine.md"
CLIENT, FORGED, BALANCER = "127.0.0.2", "203.0.113.9", "127.0.0.9"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


#: What an operator adds for a proxy in front of this one, and a page that shows what the maps make.
REAL_IP = f"set_real_ip_from {BALANCER}; real_ip_header X-Forwarded-For; server_tokens off;"
SHOWN = "location = /whom { return 200 '$whom $network'; } location = / {"

pytestmark = [pytest.mark.flow, needs("nginx", PROGRAM and shutil.which("openssl"))]


@dataclass
class Front:
    """The proxy's ports, and the shop behind it."""

    shop: Shop
    https: int
    http: int
    authority: Path

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.https}"

    def client(self) -> requests.Session:
        """Return a session without the shop's token, from CLIENT's address."""
        session = requests.Session()
        session.trust_env = False
        session.verify = str(self.authority)
        for scheme in ("http://", "https://"):
            session.mount(scheme, From())
        return session

    def authorized(self) -> requests.Session:
        session = self.client()
        session.headers["Authorization"] = self.shop.session.headers["Authorization"]
        return session


class From(HTTPAdapter):
    """Connects from an address, by default CLIENT."""

    def __init__(self, address: str = CLIENT) -> None:
        self._address = address
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, source_address=(self._address, 0), **options)


def configured(folder: Path, *, changes: dict[str, str]) -> Path:
    """Write the shipped configuration to `folder` with these changes and with paths in the folder."""
    text = CONFIGURATION.read_text()
    for old, new in (changes | {"/tmp/": f"{folder}/tmp/", "/tls/": f"{folder}/tls/"}).items():
        assert old in text, old
        text = text.replace(old, new)
    folder.chmod(0o755)
    for name in ("tls", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "tmp").chmod(0o777)
    written = folder / "nginx.conf"
    written.write_text(text)
    return written


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with Shop(HTTPS="on", TRUSTED_PROXIES=HOST) as shop, proxy_of(shop) as front:
        shop.start("web")
        yield front


@contextlib.contextmanager
def proxy_of(shop: Shop) -> Iterator[Front]:
    """Run the proxy for the web process of a shop."""
    https, plain = free_port(), free_port()
    changes = {
        "http://web:8000": f"http://{HOST}:{shop.port}",
        "listen 8443 ": f"listen [::1]:{https} ssl; listen {https} " if has_ipv6() else f"listen {https} ",
        "server_tokens off;": REAL_IP,
        "location = / {": SHOWN,
        "listen 8080;": f"listen {plain};",
        '"~:8080$" ":8443"': f'"~:{plain}$" ":{https}"',
    }
    shop.folder.chmod(0o755)
    folder = shop.folder / "proxy"
    folder.mkdir()
    file = configured(folder, changes=changes)
    authority, server = make_authority()
    (folder / "authority.pem").write_text(authority)
    for name in ("fullchain.pem", "privkey.pem"):
        (folder / "tls" / name).write_text(server)
    log = shop.folder / "proxy.log"
    log.touch()
    log.chmod(0o666)  # nginx opens /dev/stdout, which is this file
    command = guarded(
        [str(PROGRAM), "-c", file, "-g", "daemon off;"],
        account=account_for_postgres(),
    )
    with log.open("ab") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    try:
        until(lambda: not is_free(port=https), "nginx listens", details=log.read_text)
        yield Front(shop, https, plain, folder / "authority.pem")
    finally:
        process.terminate()
        process.wait(PATIENCE)


def log_in(session: requests.Session, base: str, *, shown: str = "", **headers: str) -> requests.Response:
    """Post a wrong password to `base`, as a browser that shows the address `shown`, by default `base`."""
    page = session.get(f"{base}/admin/login/", headers=headers, timeout=PATIENCE)
    assert page.status_code == 200, page.text
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)
    assert token is not None
    form = {"username": "ann", "password": "wrong", "csrfmiddlewaretoken": token[1]}
    cookies = "; ".join(f"{name}={value}" for name, value in page.cookies.items())
    shown = shown or base
    headers |= {"Referer": f"{shown}/admin/login/", "Origin": shown, "Cookie": cookies}
    return session.post(f"{base}/admin/login/", data=form, headers=headers, timeout=PATIENCE)


def seen(front: Front) -> set[str]:
    """Return the addresses for which the program has counted wrong passwords, and forget them."""
    rows = front.shop.query("DELETE FROM axes_accessattempt RETURNING host(ip_address)")
    return {address for (address,) in rows}


FORGERIES = {
    "X_Forwarded_For": FORGED,
    "X-Forwarded_For": FORGED,
    "X-Forwarded-For": FORGED,
    "x_forwarded_for": FORGED,
    "X_FORWARDED_PROTO": "http",
    "X-Forwarded-Proto": "http",
    "X_Forwarded_Host": "elsewhere.example.com",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_client_chooses_neither_its_address_nor_its_scheme(front: Front, name: str) -> None:
    answer = log_in(front.client(), front.url, **{name: FORGERIES[name]})
    assert answer.status_code == 200, answer.text
    assert seen(front) == {CLIENT}
    assert "Strict-Transport-Security" in answer.headers  # Django sends it only over HTTPS
    assert FORGED not in front.shop.log("web")


def test_the_proxy_limits_the_posts_of_passwords_from_an_address_and_nothing_else(front: Front) -> None:
    session = requests.Session()
    session.trust_env, session.verify = False, str(front.authority)
    for scheme in ("http://", "https://"):
        session.mount(scheme, From("127.0.0.3"))

    def post(path: str) -> int:
        return session.post(front.url + path, data={"username": "ann"}, timeout=PATIENCE).status_code

    passed = 0  # Django refuses them, because they have no token against forgery
    while (status := post("/admin/login/?x=1")) != 429:
        assert status == 403
        passed += 1
        assert passed < 200
    assert passed > 20
    assert 429 in [post("/admin/%6cogin/") for _ in range(5)]
    assert session.get(f"{front.url}/admin/login/", timeout=PATIENCE).status_code == 200
    assert post("/api/v1/orders") == 401
    assert (
        front.client().post(f"{front.url}/admin/login/", timeout=PATIENCE).status_code == 403
    )  # another address


def test_without_the_proxy_the_web_drops_a_header_with_an_underscore(front: Front) -> None:
    web = f"{HOST}:{front.shop.port}"
    headers = {"X_Forwarded_For": FORGED, "X-Forwarded-Proto": "https"}
    answer = log_in(requests.Session(), f"http://{web}", shown=f"https://{web}", **headers)
    assert answer.status_code == 200, answer.text
    assert seen(front) == {HOST}


def test_cookies_are_secure_and_nothing_redirects_in_a_circle(front: Front) -> None:
    session = front.client()
    page = session.get(f"{front.url}/admin/", timeout=PATIENCE)  # follows redirects
    assert page.status_code == 200 and page.url == f"{front.url}/admin/login/?next=/admin/"
    assert [cookie.secure for cookie in session.cookies] == [True]
    style = re.search(r'href="(/static/[^"]+\.css)"', page.text)
    assert style is not None
    assert session.get(front.url + style[1], timeout=PATIENCE).status_code == 200
    home = session.get(front.url, timeout=PATIENCE)
    assert home.status_code == 200 and home.url == f"{front.url}/api/docs"


def test_http_redirects_to_https_with_path_and_query(front: Front) -> None:
    for method in ("GET", "POST"):
        answer = front.client().request(
            method,
            f"http://{HOST}:{front.http}/api/v1/orders?limit=1",
            timeout=PATIENCE,
            allow_redirects=False,
        )
        assert answer.status_code == 308
        assert answer.headers["Location"] == f"{front.url}/api/v1/orders?limit=1"
    elsewhere = {"Host": "shop.example.com"}
    answer = front.client().get(
        f"http://{HOST}:{front.http}/", headers=elsewhere, timeout=PATIENCE, allow_redirects=False
    )
    assert answer.headers["Location"] == "https://shop.example.com/"


def test_old_tls_is_refused(front: Front) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(front.authority)
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    connection = http.client.HTTPSConnection(HOST, front.https, context=old, timeout=PATIENCE)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connection.request("GET", "/api/docs")
    connection.close()


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize(
    "written",
    [
        "{}",
        "{}/",
        "{}?x=1",
        "/{}",
        "/api/..{}",
        "/api/%2e%2e{}",
        "/api/..%2f{}",
        "{}/../api/docs",
        "{}%3f/../api/docs",
        "http://127.0.0.1{}",
    ],
)
def test_the_inside_is_not_reachable(front: Front, probe: str, written: str) -> None:
    # No client between would correct the path.
    context = ssl.create_default_context(cafile=front.authority)
    connection = http.client.HTTPSConnection(HOST, front.https, context=context, timeout=PATIENCE)
    connection.request("GET", written.format(probe))
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert (answer.status, "orderpost_" in body) == (404, False), body


@pytest.mark.parametrize("path", ["/api/v1/orders", "/webhooks/sendgrid", "/connect/shop-a"])
def test_a_body_over_the_limit_gets_the_webs_problem_from_the_proxy(front: Front, path: str) -> None:
    for size in (1_000_001, 5_000_000):
        answer = front.authorized().post(
            front.url + path, data=b" " * size, headers={"Content-Type": "application/json"}, timeout=PATIENCE
        )
        assert (answer.status_code, answer.headers["Content-Type"]) == (413, "application/problem+json")
        own = {"type": f"urn:orderpost:problem:{TOO_LARGE.slug}", "title": TOO_LARGE.title, "status": 413}
        assert answer.json() == own


def test_a_body_of_the_largest_size_reaches_the_web(front: Front) -> None:
    answer = front.authorized().post(
        f"{front.url}/api/v1/orders",
        data=b" " * 1_000_000,
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE,
    )
    assert answer.status_code == 400 and "help" in answer.json()


def test_an_order_and_a_signed_webhook_pass(front: Front) -> None:
    shop, session = front.shop, front.authorized()
    order = shop.place("proxied@example.com")
    assert session.post(f"{front.url}/api/v1/orders/{order}/pay", timeout=PATIENCE).status_code == 200
    (mail,) = next(row for row in shop.rows("id::text"))
    shop.query("UPDATE email_notifications SET provider = 'sendgrid'")  # nothing sends here
    event = {"email": "proxied@example.com", "event": "delivered", "notification_id": mail}
    event |= {"timestamp": int(time.time()), "sg_message_id": "1.filter0001.2.3.0"}
    body, at = json.dumps([event]).encode(), str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "X-Twilio-Email-Event-Webhook-Timestamp": at,
        "X-Twilio-Email-Event-Webhook-Signature": sign(at.encode() + body, key=SIGNS),
    }
    address = f"{front.url}/webhooks/sendgrid"
    assert (
        front.client().post(address, data=body + b" ", headers=headers, timeout=PATIENCE).status_code == 401
    )
    assert front.client().post(address, data=body, headers=headers, timeout=PATIENCE).status_code == 200
    assert shop.rows() == [("sent",)]


def test_the_log_has_the_clients_network_and_no_query(front: Front) -> None:
    front.client().get(f"{front.url}/admin/login/?q=ann@example.com", timeout=PATIENCE)
    front.client().get(f"{front.url}/connect/tea-shop/s3cret/manifest", timeout=PATIENCE)
    until(lambda: "/connect/tea-shop/***/manifest 404" in front.shop.log("proxy"), "nginx has logged it")
    assert "s3cret" not in front.shop.log("proxy") + front.shop.log("web")
    until(lambda: "GET /admin/login/ 200" in front.shop.log("proxy"), "nginx has logged the request")
    log = front.shop.log("proxy")
    assert "127.0.0.0/24 GET /admin/login/ 200" in log
    assert "ann@example.com" not in log and "127.0.0.1" not in log


def shown_of(front: Front, addresses: list[str]) -> list[tuple[str, str]]:
    """Return whom each address counts as in nginx, and the network of its log."""
    context = ssl.create_default_context(cafile=front.authority)
    shown = []
    connection = http.client.HTTPSConnection(
        HOST, front.https, context=context, timeout=30, source_address=(BALANCER, 0)
    )
    for address in addresses:
        connection.request("GET", "/whom", headers={"X-Forwarded-For": address})
        whom, network = connection.getresponse().read().decode().split(" ")
        shown.append((whom, network))
    connection.close()
    return shown


@pytest.mark.parametrize(
    ("address", "network"),
    [
        *(
            (address, "")
            for address in ("203.0.113.9", "::ffff:203.0.113.9", "2001:db8:1:2::3", "2001:db8:1::3")
        ),
        *(
            (address, "")
            for address in ("2001:db8::3", "2001:DB8:0:0:1::", "fe80::1", "64:ff9b:1::203.0.113.9")
        ),
        ("::1", "-"),
        # nginx cannot write the decimals. These have the addresses of 203.0.113.0/24 and 203.0.0.0/24.
        ("64:ff9b::203.0.113.9", "64:ff9b::cb00:7100/120"),
        ("64:ff9b::203.0.0.9", "64:ff9b::cb00:0/120"),
        ("2002:cb00:7109:1::2", "2002:cb00:7100::/40"),
        ("2002:cb00:9:1::2", "2002:cb00::/40"),
        ("2002:cb00::1", "2002:cb00::/40"),
    ],
)
def test_the_log_masks_as_the_web_does(front: Front, address: str, network: str) -> None:
    assert shown_of(front, [address])[0][1] == (network or mask_address(address))


def test_an_address_counts_as_the_same_in_nginx_and_in_the_web(front: Front) -> None:
    chance = random.Random(83)
    prefixes = [*itertools.product(["2001", "a"], ["0", "db8"], ["0", "c"], ["0", "d"])]
    prefixes += [("64", "ff9b", "0", "1"), ("64", "ff9b", "1", "0"), ("fe80", "0", "0", "0")]
    halves = ["0:0:0:1", "1:2:3:4", "0:0:2:0", "1:0:0:0", "0:1:0:0"]
    addresses = [":".join([*prefix, half]) for prefix in prefixes for half in halves]
    addresses += [
        ":".join([*prefix, *(f"{chance.choice([0, 0, 7, 65535]):x}" for _ in range(4))])
        for prefix in prefixes
    ]
    plain = ["203.0.113.9", "203.0.113.10", "10.0.0.9", "203.0.0.9"]
    addresses += [form + address for address in plain for form in ("", "::ffff:")]
    as_web: dict[str, set[str]] = {}
    for address, (whom, _) in zip(addresses, shown_of(front, addresses), strict=True):
        as_web.setdefault(counts_as(address), set()).add(whom)
    assert {who: keys for who, keys in as_web.items() if len(keys) > 1} == {}
    assert len(set.union(*as_web.values())) == len(as_web) == len(prefixes) + len(plain)


@pytest.mark.parametrize("form", ["64:ff9b::{}", "2002:{}:1::1"])
def test_each_ipv4_address_inside_ipv6_counts_alone(front: Front, form: str) -> None:
    inner = ["cb00:7109", "cb00:710a", "cb00:9", "cb00:900", "cb01:7109"]
    others = [form.format(address) for address in inner]
    same = [form.format(inner[0]).replace(":1::1", ":2::7"), form.format(inner[0]).upper()]
    keys = [whom for whom, _ in shown_of(front, others + same)]
    assert len(set(keys)) == len(inner) and set(keys[len(inner) :]) == {keys[0]}
    assert len({counts_as(address) for address in others + same}) == len(inner)


def test_the_proxy_limits_a_network_of_ipv6_and_the_web_counts_it(front: Front) -> None:
    session = front.client()
    for scheme in ("http://", "https://"):
        session.mount(scheme, From(BALANCER))

    def post(address: str) -> int:
        headers = {"X-Forwarded-For": address}
        return session.post(f"{front.url}/admin/login/", headers=headers, timeout=30).status_code

    passed = 0
    while (status := post(f"2001:db8:7:7::{passed + 1:x}")) != 429:
        assert status == 403  # Django refuses it, because it has no token against forgery
        passed += 1
        assert passed < 200
    assert passed > 20 and post("2001:db8:7:7:1:2:3:4") == 429
    assert post("2001:db8:7:8::1") == 403
    headers = {"X-Forwarded-For": "2001:db8:7:9::5"}
    assert log_in(session, front.url, **headers).status_code == 200
    assert seen(front) == {"2001:db8:7:9::"}


@needs("ipv6", has_ipv6())
def test_wrong_passwords_from_both_families_count_alone(front: Front) -> None:
    session = front.client()
    for scheme in ("http://", "https://"):
        session.mount(scheme, From("::1"))
    by_name = {"Host": f"{HOST}:{front.https}"}
    answer = log_in(session, f"https://[::1]:{front.https}", shown=front.url, **by_name)
    assert answer.status_code == 200, answer.text
    assert log_in(front.client(), front.url).status_code == 200
    assert seen(front) == {"::", CLIENT}


def test_nginx_takes_the_certificate_that_the_page_makes(tmp_path: Path) -> None:
    made = re.search(r"^(openssl req (?:.*\\\n)*.*)$", PAGE.read_text(), flags=re.MULTILINE)
    assert made is not None
    file = configured(tmp_path, changes={"http://web:8000": f"http://{HOST}:8000"})
    subprocess.run(
        ["bash", "-c", made[1].replace("var/tls/", "tls/")], cwd=tmp_path, check=True, timeout=PATIENCE
    )
    done = subprocess.run(
        [str(PROGRAM), "-t", "-c", str(file)], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr
