"""The tables of the API: tokens of callers, and stored answers of requests."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from typing import Self

from django.apps import apps
from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import connections, models
from django.db.models import Q
from django.db.models.functions import Coalesce, Now
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


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    def live(self) -> Self:
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=Now()), revoked_at=None)

    def unused(self) -> Self:
        """Filter the live tokens that were not used for `UNUSED_DAYS`."""
        last_use = Coalesce("last_used_at", "created_at")
        return self.live().alias(last_use=last_use).filter(last_use__lte=Now() - _days(ApiToken.UNUSED_DAYS))

    def expiring(self) -> Self:
        """Filter the live tokens that end within `EXPIRING_DAYS`."""
        return self.live().filter(expires_at__lte=Now() + _days(ApiToken.EXPIRING_DAYS))


def _days(number: int) -> dt.timedelta:
    return dt.timedelta(days=number)


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
    # After a rotation, the SHA-256 of the secret before, which is also taken until then.
    previous_digest = models.CharField(max_length=64, null=True, editable=False)
    previous_prefix = models.CharField(max_length=12, null=True, editable=False)
    previous_until = models.DateTimeField(null=True, editable=False)
    # The only networks from which the token is taken, such as 10.0.0.0/8, or none for no limit.
    networks = models.JSONField(default=list, db_default=[], editable=False)

    #: Days without a use after which a token is marked.
    UNUSED_DAYS = 90
    #: Days before its end in which the admin's first page counts it.
    EXPIRING_DAYS = 14
    #: Days after its end until it is deleted.
    ENDED_DAYS = 30
    purge_rules = (PurgeRule("expires_at", ENDED_DAYS), PurgeRule("revoked_at", ENDED_DAYS))

    objects = ApiTokenQuerySet.as_manager()

    class Meta:
        db_table = "api_tokens"
        verbose_name = "API token"
        indexes = [
            # a request with the secret of before a rotation
            models.Index(
                fields=["previous_digest"],
                name="api_tokens_previous_digest",
                condition=Q(previous_digest__isnull=False),
            )
        ]

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
        return last_sign_of_use <= now - _days(self.UNUSED_DAYS)

    def rotate(self, *, overlap: dt.timedelta) -> str:
        """Give the token a new secret and return it, in the caller's transaction, which has locked the row.

        The present secret is taken for `overlap` more. The one before it ends now.
        """
        secret = self.new_secret()
        ApiToken.objects.filter(id=self.id).update(
            prefix=secret[:12],
            digest=self.digest_of(secret),
            previous_digest=self.digest if overlap else None,
            previous_prefix=self.prefix if overlap else None,
            previous_until=Now() + overlap if overlap else None,
        )
        return secret

    @staticmethod
    def digest_of(secret: str) -> str:
        """Return the SHA-256 of a secret. A secret has 256 random bits, and one round is enough."""
        return hashlib.sha256(secret.encode()).hexdigest()

    @classmethod
    def new_secret(cls) -> str:
        """Return a new secret. Scanners for leaked secrets can search for its prefix."""
        return f"op_{secrets.token_urlsafe(32)}"
