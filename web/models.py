"""The tables of the API: tokens of callers, and stored answers of requests."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets

from django.apps import apps
from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import connections, models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from runtime.binding import UNBOUND, Binding
from runtime.database.ids import new_id
from runtime.database.purge_rules import PurgeRule


class IdempotencyKeyQuerySet(models.QuerySet["IdempotencyKey"]):
    def is_first(self, *, scope: str, key: str, request_hash: str) -> bool:
        """Store the key of a post without an answer. Return false if another post had the key before."""
        with connections[self.db].cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO idempotency_keys AS old (scope, key, request_hash, answer_body, answer_location)
                VALUES (%s, %s, %s, '', '')
                ON CONFLICT (scope, key) DO UPDATE SET request_hash = old.request_hash
                RETURNING request_hash
                """,
                [scope, key, request_hash],
            )
            return bool(cursor.fetchone() == (request_hash,))


class IdempotencyKey(models.Model):
    """The stored answer to a request with an Idempotency-Key.

    The transaction that does the work writes it, and it is kept for IDEMPOTENCY_DAYS. A post of a provider
    whose signature does not cover the event stores the signature as a key without an answer, for
    `SIGNATURE_SECONDS`.
    """

    #: Longer than any post with such a signature is accepted: eight hours, and two clocks' tolerance.
    SIGNATURE_SECONDS = 8 * 3600 + 2 * 300

    pk = models.CompositePrimaryKey("scope", "key")
    scope = models.CharField(max_length=50)  # "token:<id>" or "webhook:<provider>"
    key = models.CharField(max_length=255)  # for a token, runtime.personal_data.key_hash of the caller's key
    request_hash = models.CharField(max_length=64, default="")
    answer_status = models.PositiveSmallIntegerField(null=True)
    answer_body = models.TextField(default="")  # as sent, byte for byte
    answer_location = models.TextField(default="")
    # The order that the answer is about, and the keyed hash of each address in it.
    order_id = models.UUIDField(null=True)
    address_hashes = models.JSONField(default=list, db_default=[])
    created_at = models.DateTimeField(db_default=Now())

    #: Of an erased answer only the ids stay.
    erased_texts = {
        "answer_body": r"""(
            SELECT coalesce(jsonb_object_agg(name, value), '{}')::text
            FROM jsonb_each(nullif(answer_body, '')::jsonb) AS member (name, value)
            WHERE name = 'id' OR name LIKE '%%\_id'
        )"""
    }
    purge_rules = (
        PurgeRule("created_at", lambda: settings.IDEMPOTENCY_DAYS),
        PurgeRule("created_at", SIGNATURE_SECONDS / 86_400, keep="scope NOT LIKE 'webhook:%%'"),
    )

    objects = IdempotencyKeyQuerySet.as_manager()

    class Meta:
        db_table = "idempotency_keys"
        indexes = [  # the purges
            models.Index(fields=["created_at"], name="idempotency_keys_age"),
            models.Index(
                fields=["created_at"],
                name="idempotency_keys_webhook_age",
                condition=Q(scope__startswith="webhook:"),
            ),
            # the export and the erasure of a person
            models.Index(
                fields=["order_id"], name="idempotency_keys_order", condition=Q(order_id__isnull=False)
            ),
            GinIndex(fields=["address_hashes"], name="idempotency_keys_addresses"),
        ]

    def __str__(self) -> str:
        return f"{self.scope}/{self.key}"


def declared_scopes() -> list[str]:
    """Return the scopes of all apps, which declare theirs in `AppConfig.scopes`."""
    return sorted(scope for app in apps.get_app_configs() for scope in getattr(app, "scopes", ()))


class ApiToken(models.Model):
    """A caller's access to the API. Only the SHA-256 of the secret is stored."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, editable=False)  # identifies a token in a list
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list)
    # The one system of ORDER_SOURCES whose orders the token can see and send events of, or "" for no limit.
    source = models.CharField(max_length=100, default="", db_default="", blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, editable=False)  # at most an hour too early

    #: Days without a use after which a token is marked.
    UNUSED_DAYS = 90
    #: Days after its end until it is deleted.
    ENDED_DAYS = 30
    purge_rules = (PurgeRule("expires_at", ENDED_DAYS), PurgeRule("revoked_at", ENDED_DAYS))

    class Meta:
        db_table = "api_tokens"
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def binding(self) -> Binding:
        return Binding(frozenset({self.source})) if self.source else UNBOUND

    def is_unused(self) -> bool:
        """Return whether a live token was not used for UNUSED_DAYS."""
        now = timezone.now()
        if self.revoked_at or (self.expires_at and self.expires_at <= now):
            return False
        last_sign_of_use = self.last_used_at or self.created_at
        return last_sign_of_use <= now - dt.timedelta(days=self.UNUSED_DAYS)

    @staticmethod
    def digest_of(secret: str) -> str:
        """Return the SHA-256 of a secret. A secret has 256 random bits, and one round is enough."""
        return hashlib.sha256(secret.encode()).hexdigest()

    @classmethod
    def new_secret(cls) -> str:
        """Return a new secret. Scanners for leaked secrets can search for its prefix."""
        return f"op_{secrets.token_urlsafe(32)}"
