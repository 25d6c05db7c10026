"""A real Keycloak with one realm, one person and two clients, and its login page by HTTP.

Maven fetches its archive (docs/adr/0027). Without Java or Maven the drill is skipped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import secrets
import subprocess
import zipfile
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import requests

from local.kafka import jars
from local.machine import HOST, PROJECT, free_port, guarded
from tests.kit.waiting import PATIENCE, until

REALM, PERSON, PASSWORD = "shop", "ann", "of-the-drill"
CLIENT, OTHER_CLIENT, SECRET = "orderpost", "another", "its-secret"
#: Where nobody listens: the code is read from the redirect.
OTHER_ADDRESS = f"http://{HOST}:9/answer/"
GROUPS = ("shop-support", "shop-ops", "others")
_ARCHIVE = PROJECT / "tests" / "drills" / "keycloak_dist"
_ADMIN = {"username": "admin", "password": PASSWORD}


@cache
def why_not() -> str:
    """Return why Keycloak cannot run here, or an empty text."""
    try:
        jars.java()
        jars.fetch(_ARCHIVE)
    except jars.Unavailable as error:
        return str(error)
    return ""


class RealKeycloak:
    """`with RealKeycloak(folder, port=PORT, redirect=ADDRESS) as keycloak:` starts it in an empty folder."""

    def __init__(self, folder: Path, *, port: int, redirect: str) -> None:
        self.folder, self.redirect = folder, redirect
        self.address = f"http://{HOST}:{port}"
        self.issuer = f"{self.address}/realms/{REALM}"
        self._port, self._token = port, ""
        self._session = requests.Session()
        self._session.trust_env = False

    def __enter__(self) -> RealKeycloak:
        [archive] = jars.fetch(_ARCHIVE)
        with zipfile.ZipFile(archive) as file:
            file.extractall(self.folder)
        [home] = self.folder.iterdir()
        imported = home / "data" / "import"
        imported.mkdir(parents=True)
        (imported / "realm.json").write_text(json.dumps(self._realm()))
        command = ["bash", str(home / "bin" / "kc.sh"), "start-dev", "--import-realm", f"--http-host={HOST}"]
        ports = [f"--http-port={self._port}", f"--http-management-port={free_port()}"]
        environment = os.environ | {
            "KC_BOOTSTRAP_ADMIN_USERNAME": _ADMIN["username"],
            "KC_BOOTSTRAP_ADMIN_PASSWORD": _ADMIN["password"],
            "JAVA_OPTS_KC_HEAP": "-Xms64m -Xmx512m",
            "JAVA": jars.java(),
        }
        log = self.folder / "keycloak.log"
        with log.open("ab") as stream:
            argv = guarded([*command, *ports])
            self._process = subprocess.Popen(argv, stdout=stream, stderr=stream, env=environment)
        until(self._answers, "Keycloak answers", seconds=4 * PATIENCE, details=log.read_text)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def _answers(self) -> bool:
        try:
            return self._session.get(f"{self.issuer}/.well-known/openid-configuration", timeout=5).ok
        except requests.RequestException:
            return False

    def _realm(self) -> dict[str, Any]:
        person = {
            **{"username": PERSON, "enabled": True, "firstName": "Ann", "lastName": "Lee"},
            **{"email": "ann@example.com", "emailVerified": True, "groups": ["shop-support", "others"]},
            "credentials": [{"type": "password", "value": PASSWORD}],
        }
        groups = {
            **{"name": "groups", "protocol": "openid-connect"},
            "protocolMapper": "oidc-group-membership-mapper",
            "config": {"claim.name": "groups", "full.path": "false", "id.token.claim": "true"},
        }
        clients = [
            {
                **{
                    "clientId": name,
                    "secret": SECRET,
                    "redirectUris": [address],
                    "protocolMappers": [groups],
                },
                "attributes": {"pkce.code.challenge.method": "S256"},
            }
            for name, address in ((CLIENT, self.redirect), (OTHER_CLIENT, OTHER_ADDRESS))
        ]
        made = [{"name": name} for name in GROUPS]
        return {"realm": REALM, "enabled": True, "groups": made, "users": [person], "clients": clients}

    def admin(self, method: str, path: str) -> Any:
        """Do what its administrator does in the realm."""
        answer = self._session.post(
            f"{self.address}/realms/master/protocol/openid-connect/token",
            data={"grant_type": "password", "client_id": "admin-cli", **_ADMIN},
            timeout=PATIENCE,
        )
        answer.raise_for_status()
        headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
        url = f"{self.address}/admin/realms/{REALM}{path}"
        answer = self._session.request(method, url, headers=headers, timeout=PATIENCE)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def set_groups(self, *names: str) -> None:
        """Let the person be in these groups alone."""
        [person] = self.admin("GET", f"/users?username={PERSON}&exact=true")
        ids = {group["name"]: group["id"] for group in self.admin("GET", "/groups")}
        for name, id in ids.items():
            self.admin("PUT" if name in names else "DELETE", f"/users/{person['id']}/groups/{id}")

    def end_sessions(self) -> None:
        [person] = self.admin("GET", f"/users?username={PERSON}&exact=true")
        self.admin("POST", f"/users/{person['id']}/logout")

    def code_of_other_client(self) -> tuple[str, str]:
        """Log the person in for the other client. Return the code and its PKCE verifier."""
        verifier = secrets.token_urlsafe(48)
        digest = hashlib.sha256(verifier.encode()).digest()
        asked = {
            **{"client_id": OTHER_CLIENT, "redirect_uri": OTHER_ADDRESS, "response_type": "code"},
            **{"scope": "openid", "state": "x", "nonce": "y", "code_challenge_method": "S256"},
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        }
        browser = requests.Session()
        browser.trust_env = False
        url = f"{self.issuer}/protocol/openid-connect/auth?{urlencode(asked)}"
        back = fill_in(browser, open_page(browser, "GET", url))
        return parse_qs(urlsplit(back).query)["code"][0], verifier

    def id_token_of_other_client(self) -> str:
        code, verifier = self.code_of_other_client()
        form = {
            **{"grant_type": "authorization_code", "code": code, "redirect_uri": OTHER_ADDRESS},
            **{"client_id": OTHER_CLIENT, "client_secret": SECRET, "code_verifier": verifier},
        }
        url = f"{self.issuer}/protocol/openid-connect/token"
        answer = self._session.post(url, data=form, timeout=PATIENCE)
        answer.raise_for_status()
        return str(answer.json()["id_token"])


def open_page(browser: requests.Session, method: str, address: str, **form: str) -> requests.Response:
    """Ask for a page without following. Keycloak gets its Secure cookies, as of browsers at 127.0.0.1."""
    for cookie in browser.cookies:
        if cookie.path.startswith("/realms/"):
            cookie.secure = False
    return browser.request(method, address, data=form, allow_redirects=False, timeout=PATIENCE)


def fill_in(browser: requests.Session, page: requests.Response) -> str:
    """Log in on Keycloak's page, and return the address to which it sends the person back."""
    form = re.search(r'<form id="kc-form-login"[^>]*action="([^"]+)"', page.text)
    assert form is not None, re.findall(r'class="instruction">(.*?)<', page.text)
    answer = open_page(browser, "POST", html.unescape(form[1]), username=PERSON, password=PASSWORD)
    assert answer.status_code == 302, re.findall(r'class="instruction">(.*?)<', answer.text)
    return answer.headers["Location"]
