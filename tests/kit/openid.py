"""An OpenID provider on this machine, whose answers a test chooses."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.test import Client
from django.urls import clear_url_caches

CLIENT_ID, CLIENT_SECRET = "orderpost", "its-secret"
LOGIN = "/admin/login/oidc/"


@functools.cache
def signing_key(number: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclasses.dataclass
class OpenIdProvider:
    """`claims` are those of the person who is logged in there; None is nobody."""

    url: str = ""
    claims: dict[str, Any] | None = None
    #: What replaces claims of the next ID tokens, and the key that signs them.
    forged: dict[str, Any] = dataclasses.field(default_factory=dict)
    key: int = 0
    codes: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    asked: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def authorize(self, parameters: dict[str, str]) -> str:
        """Return the address to which the provider sends the person back."""
        self.asked.append(parameters)
        answer = {"state": parameters["state"]}
        if self.claims is None:
            answer["error"] = "login_required"
        else:
            answer["code"] = secrets.token_urlsafe(8)
            self.codes[answer["code"]] = parameters
        return f"{parameters['redirect_uri']}?{urlencode(answer)}"

    def exchange(self, form: dict[str, str]) -> dict[str, Any] | None:
        """Return the tokens for a code, which counts once and only with its verifier."""
        parameters = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (
            parameters is None
            or challenge != parameters["code_challenge"]
            or (form.get("client_id"), form.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET)
        ):
            return None
        now = int(time.time())
        standard = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 300}
        claims = standard | {"nonce": parameters["nonce"]} | (self.claims or {}) | self.forged
        token = jwt.encode(claims, signing_key(self.key), algorithm="RS256", headers={"kid": "first"})
        return {"access_token": "unused", "token_type": "Bearer", "id_token": token}

    def answer(self, method: str, path: str, body: str) -> tuple[int, dict[str, Any] | str]:
        """Return a status with JSON or a location."""
        parts = urlsplit(path)
        if parts.path == "/.well-known/openid-configuration":
            ends = {
                f"{name}_endpoint": f"{self.url}/{path}"
                for name, path in (("authorization", "authorize"), ("token", "token"))
            }
            methods = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
            return 200, {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **ends, **methods}
        if parts.path == "/keys":
            key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(signing_key(0).public_key()))
            return 200, {"keys": [key | {"kid": "first", "use": "sig", "alg": "RS256"}]}
        if parts.path == "/authorize":
            return 302, self.authorize(dict(parse_qsl(parts.query)))
        if (parts.path, method) == ("/token", "POST"):
            tokens = self.exchange({name: values[0] for name, values in parse_qs(body).items()})
            return (200, tokens) if tokens else (400, {"error": "invalid_grant"})
        return 404, {}


@contextlib.contextmanager
def openid_provider() -> Iterator[OpenIdProvider]:
    provider = OpenIdProvider()

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # one packet for each answer

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            status, answer = provider.answer(self.command, self.path, body)
            self.send_response(status)
            if isinstance(answer, str):
                self.send_header("Location", answer)
            data = b"" if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()


def come(client: Client, provider: OpenIdProvider, page: str = "") -> Any:
    """Go to the provider and back, and return the last answer."""
    return client.get(way_back(client, provider, page))


def way_back(client: Client, provider: OpenIdProvider, page: str = "") -> str:
    """Go to the provider, and return the address to which it sends the person back."""
    away = client.get(f"{LOGIN}?{urlencode({'next': page})}")
    assert away.status_code == 302, away.content
    return follow(away.headers["Location"], provider)


def follow(location: str, provider: OpenIdProvider) -> str:
    """Be sent to the provider, and return the address to which it sends the person back."""
    assert location.startswith(f"{provider.url}/authorize?")
    back = urlsplit(provider.authorize(dict(parse_qsl(urlsplit(location).query))))
    return f"{back.path}?{back.query}"


MAP = {
    "shop-support": ("support", ("coffee", "tea")),
    "shop-texts": ("editor", ("coffee", "tea")),
    "shop-ops": ("operator", ("*",)),
    "shop-lost": ("no-such-group", ()),
}


def mount_again() -> None:
    """Mount the pages of the login that the settings configure."""
    import config.urls
    import web.login.urls

    importlib.reload(web.login.urls)
    importlib.reload(config.urls)
    clear_url_caches()


@pytest.fixture(scope="session")
def one_provider() -> Iterator[OpenIdProvider]:
    with openid_provider() as provider:
        yield provider


@pytest.fixture
def provider(one_provider: OpenIdProvider, settings: Any) -> Iterator[OpenIdProvider]:
    one_provider.forged, one_provider.key = {}, 0
    one_provider.asked.clear()
    one_provider.codes.clear()
    settings.OIDC_ISSUER = one_provider.url
    settings.OIDC_CLIENT_ID, settings.OIDC_CLIENT_SECRET = CLIENT_ID, CLIENT_SECRET
    settings.OIDC_GROUPS_CLAIM, settings.OIDC_GROUP_MAP = "groups", MAP
    settings.REQUIRE_MFA = True
    one_provider.claims = {"sub": "ann-1", "preferred_username": "ann", "groups": ["shop-support", "others"]}
    mount_again()
    yield one_provider
    settings.OIDC_ISSUER = ""
    mount_again()
