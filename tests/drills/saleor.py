"""A real Saleor, started from a checkout with its own Python, and what its staff and its customers do there.

LIVE_SALEOR is the checkout of a release with its requirements: in it, `uv sync --frozen` with Python 3.12
makes the `.venv` that is used. Some releases import pytest, so do not leave out the group `dev`. The migrated
database is kept in the checkout, in `.orderpost`, because the migrations take minutes.
"""

from __future__ import annotations

import base64
import contextlib
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from local.machine import HOST, free_port, guarded
from local.servers import EmbeddedPostgres, EmbeddedValkey
from tests.kit.waiting import PATIENCE, until

Json = dict[str, Any]
CHECKOUT = os.environ.get("LIVE_SALEOR", "")
EMAIL, PASSWORD = "staff@example.com", "of-the-drill"
#: Saleor's access tokens are valid for five minutes.
_TOKEN_SECONDS = 120.0
_ADDRESS = {
    **{"firstName": "Ann", "lastName": "Lee", "streetAddress1": "Hauptstr. 1", "city": "BERLIN"},
    **{"postalCode": "10115", "country": "DE"},
}
_MAKE_STAFF = f"""
from saleor.account.models import Group, User
group, _ = Group.objects.get_or_create(name="of the drill", restricted_access_to_channels=False)
user, _ = User.objects.get_or_create(
    email={EMAIL!r},
    defaults=dict(is_staff=True, is_superuser=True, is_active=True, is_confirmed=True),
)
user.set_password({PASSWORD!r})
user.save()
user.groups.add(group)
"""
_ERRORS = "errors { field message code }"


class _Postgres(EmbeddedPostgres):
    """Saleor's migrations create pgcrypto, of which they use what PostgreSQL has itself by now."""

    def argv(self) -> list[str]:
        folder = self.data.parent / "extensions" / "extension"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pgcrypto.control").write_text("default_version = '1.3'\n")
        (folder / "pgcrypto--1.3.sql").write_text("SELECT 1;\n")
        path = f"extension_control_path=$system:{folder.parent}"
        waits = ["-c", "lock_timeout=0", "-c", "idle_in_transaction_session_timeout=0"]
        return [*super().argv(), "-c", path, *waits]


class RealSaleor:
    """`with RealSaleor() as saleor:` migrates its database, and runs its web process and its worker."""

    def __init__(self, checkout: Path = Path(CHECKOUT)) -> None:
        self.checkout, self.folder = checkout.resolve(), checkout.resolve() / ".orderpost"
        self.port = free_port()
        self.address = f"http://{HOST}:{self.port}"
        self.postgres = _Postgres(data=self.folder / "postgres", port=free_port(), throwaway=True)
        self.valkey = EmbeddedValkey(data=self.folder / "valkey", port=free_port(), throwaway=True)
        self._programs: list[subprocess.Popen[bytes]] = []
        self._session = requests.Session()
        self._session.trust_env = False
        self._token, self._token_at = "", -_TOKEN_SECONDS

    def __enter__(self) -> RealSaleor:
        self.folder.mkdir(exist_ok=True)
        try:
            self.postgres.start(log=self.folder / "postgres.log")
            self.valkey.start(log=self.folder / "valkey.log")
            self._environment = self._make_environment()
            prepared = self.folder / "prepared"
            if not prepared.exists():
                self._manage("migrate", "--noinput", "--verbosity=0")
                self._manage("shell", "--command", _MAKE_STAFF)
                prepared.touch()
            self._run("uvicorn", "saleor.asgi:application", "--host", HOST, "--port", str(self.port))
            worker = ("--app", "saleor.celeryconf:app", "worker", "--concurrency", "2")
            self._run("celery", *worker)
            until(self._answers, "Saleor answers")
            for edge in self.do("{ apps(first: 100) { edges { node { id } } } }")["edges"]:
                self.uninstall(edge["node"]["id"])  # of an earlier run
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.terminate()
        for program in self._programs:
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()
        self.valkey.stop()
        self.postgres.stop()

    @property
    def release(self) -> str:
        version: str = self.do("{ shop { version } }")["version"]
        return version

    # Its API

    def ask(self, query: str, *, token: str | None = None, **variables: Any) -> Json:
        """Return the answer to a query by the staff, or with a token, or by nobody with an empty one."""
        if token is None:
            token = self._staff_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body: Json = {"query": query, "variables": variables}
        url = f"{self.address}/graphql/"
        answer: Json = self._session.post(url, json=body, headers=headers, timeout=PATIENCE).json()
        return answer

    def do(self, query: str, *, token: str | None = None, **variables: Any) -> Any:
        """Return the only field of an answer without errors."""
        answer = self.ask(query, token=token, **variables)
        assert "errors" not in answer, answer["errors"]
        (value,) = answer["data"].values()
        assert not (isinstance(value, dict) and value.get("errors")), value
        return value

    def mutate(
        self, name: str, result: str, types: str, *, token: str | None = None, **variables: Any
    ) -> Any:
        """Run a mutation. `types` has the type of each variable, in their order."""
        declared = dict(zip(variables, types.split(), strict=True))
        outside = ", ".join(f"${variable}: {type}" for variable, type in declared.items())
        inside = ", ".join(f"{variable}: ${variable}" for variable in variables)
        query = f"mutation ({outside}) {{ {name}({inside}) {{ {result} {_ERRORS} }} }}"
        return self.do(query, token=token, **variables)

    # What there is to sell

    def make_channel(self, currency: str = "EUR") -> Json:
        """Make a channel with a product of two variants and a shipping method."""
        slug = f"tea-{uuid.uuid4().hex[:8]}"
        settings = {"allowUnpaidOrders": True, "markAsPaidStrategy": "TRANSACTION_FLOW"}
        wanted: Json = {"name": slug, "slug": slug, "currencyCode": currency, "defaultCountry": "DE"}
        wanted |= {"isActive": True, "orderSettings": settings}
        channel = self._make("channelCreate", "channel", "ChannelCreateInput!", wanted)
        place = {name: value for name, value in _ADDRESS.items() if not name.endswith("Name")}
        wanted = {"name": slug, "slug": slug, "address": place}
        warehouse = self._make("createWarehouse", "warehouse", "WarehouseCreateInput!", wanted)
        self._edit("channelUpdate", "ChannelUpdateInput!", channel, {"addWarehouses": [warehouse]})
        wanted = {"name": slug, "countries": ["DE"], "addChannels": [channel], "addWarehouses": [warehouse]}
        zone = self._make("shippingZoneCreate", "shippingZone", "ShippingZoneCreateInput!", wanted)
        wanted = {"name": "Post", "type": "PRICE", "shippingZone": zone}
        method = self._make("shippingPriceCreate", "shippingMethod", "ShippingPriceInput!", wanted)
        listed: Json = {"addChannels": [{"channelId": channel, "price": "4.90"}]}
        listing = "ShippingMethodChannelListingInput!"
        self._edit("shippingMethodChannelListingUpdate", listing, method, listed)
        wanted = {"name": slug, "slug": slug, "isShippingRequired": True, "hasVariants": True}
        kind = self._make("productTypeCreate", "productType", "ProductTypeInput!", wanted)
        category = self._make("categoryCreate", "category", "CategoryInput!", {"name": slug, "slug": slug})
        wanted = {"name": "Green tea", "slug": slug, "productType": kind, "category": category}
        product = self._make("productCreate", "product", "ProductCreateInput!", wanted)
        sold = {"isPublished": True, "visibleInListings": True, "isAvailableForPurchase": True}
        listed = {"updateChannels": [{"channelId": channel, **sold}]}
        self._edit("productChannelListingUpdate", "ProductChannelListingUpdateInput!", product, listed)
        variants = []
        for size, price in (("100 g", "10.00"), ("250 g", "20.00")):
            stocks = [{"warehouse": warehouse, "quantity": 1000}]
            wanted = {"product": product, "name": size, "sku": f"{slug}-{size[:3]}", "attributes": []}
            wanted |= {"stocks": stocks}
            variant = self._make(
                "productVariantCreate", "productVariant", "ProductVariantCreateInput!", wanted
            )
            prices = [{"channelId": channel, "price": price}]
            listing = "[ProductVariantChannelListingAddInput!]!"
            self._edit("productVariantChannelListingUpdate", listing, variant, prices)
            variants.append(variant)
        # A checkout wants the method under another name.
        id = base64.b64decode(method).replace(b"ShippingMethodType", b"ShippingMethod")
        method = base64.b64encode(id).decode()
        return {"slug": slug, "method": method, "warehouse": warehouse, "variants": variants}

    # What customers and staff do

    def place(self, channel: Json, quantities: tuple[int, int] = (2, 1)) -> str:
        """Place an unpaid order as a guest. Return its id."""
        lines = [
            {"variantId": variant, "quantity": quantity}
            for variant, quantity in zip(channel["variants"], quantities, strict=True)
            if quantity
        ]
        wanted = {
            **{"channel": channel["slug"], "email": "ann.lee@example.com", "lines": lines},
            **{"shippingAddress": _ADDRESS, "billingAddress": _ADDRESS, "languageCode": "EN"},
        }
        made = self.mutate(
            "checkoutCreate", "checkout { id }", "CheckoutCreateInput!", token="", input=wanted
        )
        id = made["checkout"]["id"]
        self.mutate(
            *("checkoutDeliveryMethodUpdate", "checkout { id }", "ID! ID!"),
            token="",
            id=id,
            deliveryMethodId=channel["method"],
        )
        made = self.mutate("checkoutComplete", "order { id }", "ID!", token="", id=id)
        return str(made["order"]["id"])

    def confirm(self, order: str) -> None:
        self.mutate("orderConfirm", "order { id }", "ID!", id=order)

    def pay(self, order: str, amount: str) -> str:
        """Charge an amount by a transaction. Return its id."""
        wanted: Json = {"name": "Card", "pspReference": uuid.uuid4().hex, "availableActions": ["REFUND"]}
        wanted |= {"amountCharged": {"amount": amount, "currency": "EUR"}}
        made = self.mutate(
            *("transactionCreate", "transaction { id }", "ID! TransactionCreateInput!"),
            id=order,
            transaction=wanted,
        )
        return str(made["transaction"]["id"])

    def refund(self, transaction: str, amount: str) -> None:
        self.mutate(
            *("transactionEventReport", "alreadyProcessed"),
            "ID! TransactionEventTypeEnum! PositiveDecimal! String!",
            id=transaction,
            type="REFUND_SUCCESS",
            amount=amount,
            pspReference=uuid.uuid4().hex,
        )

    def fulfill(
        self,
        channel: Json,
        order: str,
        quantities: tuple[int, ...],
        *,
        notify: bool = True,
        number: str = "",
    ) -> str:
        """Send a parcel with so many of each line. Return its id."""
        lines = self.do("query ($id: ID!) { order(id: $id) { lines { id } } }", id=order)["lines"]
        wanted: Json = {"notifyCustomer": notify, "trackingNumber": number}
        wanted["lines"] = [
            {
                "orderLineId": line["id"],
                "stocks": [{"quantity": quantity, "warehouse": channel["warehouse"]}],
            }
            for line, quantity in zip(lines, quantities, strict=True)
            if quantity
        ]
        made = self.mutate(
            "orderFulfill", "fulfillments { id }", "ID! OrderFulfillInput!", order=order, input=wanted
        )
        return str(made["fulfillments"][0]["id"])

    def track(self, fulfillment: str, number: str) -> None:
        self.mutate(
            "orderFulfillmentUpdateTracking",
            "fulfillment { id }",
            "ID! FulfillmentUpdateTrackingInput!",
            id=fulfillment,
            input={"trackingNumber": number, "notifyCustomer": True},
        )

    def cancel(self, order: str) -> None:
        self.mutate("orderCancel", "order { id }", "ID!", id=order)

    def send_back(self, order: str, fulfillment: str, *, replace: bool = False) -> str:
        """Return all lines of a parcel, or replace them. Return the id of the order of the replacement."""
        fields = "fulfillments { id lines { id quantity } }"
        parcels = self.do(f"query ($id: ID!) {{ order(id: $id) {{ {fields} }} }}", id=order)
        (lines,) = [each["lines"] for each in parcels["fulfillments"] if each["id"] == fulfillment]
        moved = [
            {"fulfillmentLineId": line["id"], "quantity": line["quantity"], "replace": replace}
            for line in lines
        ]
        made = self.mutate(
            "orderFulfillmentReturnProducts",
            "replaceOrder { id }",
            "ID! OrderReturnProductsInput!",
            order=order,
            input={"fulfillmentLines": moved, "refund": False},
        )
        return str((made["replaceOrder"] or {}).get("id", ""))

    def move_back(self, order: str, *, minutes: int, parcels: int = 0) -> None:
        """Let an order have been placed and saved so long ago, and its parcels created."""
        id = base64.b64decode(order).decode().removeprefix("Order:")
        then, sent = (f"now() - interval '{ago} minutes'" for ago in (minutes, parcels))
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            for statement in (
                f"UPDATE order_order SET created_at = {then}, updated_at = {then} WHERE id = '{id}'",
                f"UPDATE order_fulfillment SET created_at = {sent} WHERE order_id = '{id}'",
            ):
                connection.execute(statement.encode())

    # Its apps

    def install(self, manifest: str) -> tuple[str, str]:
        """Install an app as the dashboard does. Return its id, or the message that the dashboard shows."""
        wanted: Json = {"manifestUrl": manifest, "appName": "orderpost", "permissions": ["MANAGE_ORDERS"]}
        wanted |= {"activateAfterInstallation": True}
        started = self.mutate("appInstall", "appInstallation { id }", "AppInstallInput!", input=wanted)
        id = started["appInstallation"]["id"]

        def outcome() -> tuple[str, str] | None:
            for job in self.do("{ appsInstallations { id status message } }"):
                if job["id"] == id:
                    return ("", job["message"]) if job["status"] == "FAILED" else None
            edges = self.do("{ apps(first: 100) { edges { node { id manifestUrl } } } }")["edges"]
            (app,) = [edge["node"]["id"] for edge in edges if edge["node"]["manifestUrl"] == manifest]
            return app, ""

        ended = until(outcome, "the app is installed or refused")
        assert ended is not None
        return ended

    def uninstall(self, app: str) -> None:
        self.mutate("appDelete", "app { id }", "ID!", id=app)

    def make_token(self, name: str) -> str:
        """Make an app without a manifest. Return its token."""
        wanted = {"name": name, "permissions": ["MANAGE_ORDERS"]}
        made = self.mutate("appCreate", "authToken", "AppInput!", input=wanted)
        return str(made["authToken"])

    # Its processes

    def _make(self, name: str, made: str, type: str, wanted: Json) -> str:
        id: str = self.mutate(name, f"{made} {{ id }}", type, input=wanted)[made]["id"]
        return id

    def _edit(self, name: str, type: str, id: str, wanted: object) -> None:
        self.mutate(name, "", f"ID! {type}", id=id, input=wanted)

    def _staff_token(self) -> str:
        if time.monotonic() - self._token_at > _TOKEN_SECONDS:
            made = self.mutate(
                "tokenCreate", "token", "String! String!", token="", email=EMAIL, password=PASSWORD
            )
            self._token, self._token_at = made["token"], time.monotonic()
        return self._token

    def _make_environment(self) -> dict[str, str]:
        key = self.folder / "key.pem"
        if not key.exists():
            made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            form = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL)
            key.write_bytes(made.private_bytes(*form, serialization.NoEncryption()))
        broker = self.valkey.url.removesuffix("/0")
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            **{"DATABASE_URL": self.postgres.url, "CACHE_URL": f"{broker}/0"},
            **{"CELERY_BROKER_URL": f"{broker}/1", "RSA_PRIVATE_KEY": key.read_text()},
            **{"SECRET_KEY": "not-secret-drills-only", "DEBUG": "False", "ALLOWED_HOSTS": "*"},
            **{"ALLOWED_CLIENT_HOSTS": HOST, "PUBLIC_URL": self.address},
            **{"HTTP_IP_FILTER_ENABLED": "False", "EMAIL_URL": "consolemail://"},
            **{"SEND_USAGE_TELEMETRY": "False", "OTEL_SDK_DISABLED": "true", "NO_PROXY": HOST},
        }

    def _manage(self, *arguments: str) -> None:
        command = [str(self.checkout / ".venv" / "bin" / "python"), "manage.py", *arguments]
        with (self.folder / "manage.log").open("ab") as log:
            subprocess.run(
                command, cwd=self.checkout, env=self._environment, stdout=log, stderr=log, check=True
            )

    def _run(self, program: str, *arguments: str) -> None:
        command = guarded([str(self.checkout / ".venv" / "bin" / program), *arguments])
        with (self.folder / f"{program}.log").open("ab") as log:
            self._programs.append(
                subprocess.Popen(command, cwd=self.checkout, env=self._environment, stdout=log, stderr=log)
            )

    def _answers(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return self._session.get(f"{self.address}/health/", timeout=5).ok
        return False
