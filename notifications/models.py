"""The tables of e-mails: those owed to customers, senders, suppressed addresses, and own texts."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from django.contrib.postgres.indexes import BrinIndex, HashIndex
from django.db import DEFAULT_DB_ALIAS, connections, models
from django.db.models import F, Q, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Greatest, Now, Upper
from django.db.models.lookups import Exact, IsNull

from notifications.retention import EMAIL_RETENTION
from notifications.states.errors import ErrorEntry
from notifications.states.transitions import (
    COLUMNS_OF,
    DUE_INDEX,
    DUE_STATES,
    REASONS,
    EndedBy,
    Status,
)
from retention.partitioned import Partitioned
from runtime.binding import by_source
from runtime.database.beginnings import any_case
from runtime.database.ids import new_id
from runtime.database.purge_rules import PurgeRule
from runtime.models import Heartbeat
from runtime.personal_data import ERASED_ADDRESS

#: The name that people read for the orders without a source.
OWN_ORDERS = "own orders"
#: Columns too large to load when only the state matters.
CONTENT = ("subject", "body", "body_text")


def _by_minute(column: str) -> RawSQL:
    """Return the expression of an index by minute, so that further rows of a minute change no entry."""
    return RawSQL(f"(date_bin('1 minute', {column}, '2000-01-01 00:00+00'))", [])  # noqa: S611 - our columns


def _has_columns_of(status: Status) -> Q:
    """Require a state's columns in that state, and NULL in all others.

    Every statement that writes the row parses the condition, so it is one comparison for each column.
    """
    is_in_state = Exact(F("status"), Value(status.value))
    return Q(*(Exact(is_in_state, IsNull(F(column), False)) for column in COLUMNS_OF[status]))


def _has_reason_of_state() -> Q:
    """Require a known state with one of its reasons, and none in a state that has none."""
    open_states = [status.value for status in Status if status not in REASONS]
    condition = Q(status__in=open_states, ended_by="")
    for status, reasons in REASONS.items():
        condition |= Q(status=status.value, ended_by__in=[reason.value for reason in reasons])
    return condition


#: The time of the last failed attempt, as stored: text in ISO 8601 and UTC.
LAST_ERROR_AT = RawSQL("""((errors -> -1 ->> 'at') COLLATE "C")""", [])
#: When an e-mail was first due: it was written, got an address, or was resent.
FIRST_DUE = "greatest(created_at, readdressed_at, resent_at)"
#: Since when an e-mail could be sent: `notifications.changes.age` says why.
WAITS_SINCE = f"""greatest({FIRST_DUE},
    (SELECT beat_at FROM heartbeats WHERE name = '{Heartbeat.DELIVERY_RESUMED}'))"""  # noqa: S608 - ours


class EventTimes(NamedTuple):
    """A provider's times of an e-mail's delivery, bounce and complaint, and the text of the bounce."""

    id: uuid.UUID
    delivered_at: dt.datetime | None = None
    bounced_at: dt.datetime | None = None
    complained_at: dt.datetime | None = None
    bounce_text: str = ""


class StoredReport(NamedTuple):
    """The columns of an e-mail that a provider's events are compared with."""

    source: str
    status: str
    recipient_email: str
    traceparent: str
    provider: str
    provider_message_id: str
    errors: Sequence[ErrorEntry]
    times: EventTimes


class EmailNotificationQuerySet(models.QuerySet["EmailNotification"]):
    """Filters by state, and what providers report.

    `changes.settle`, `changes.manual_actions` and `outbox.claim` change states. The statements
    about reports ignore the filter of the query that they are called on.
    """

    def due(self) -> EmailNotificationQuerySet:
        """Return the rows that may be claimed now, by the database's clock."""
        return self.filter(status__in=DUE_STATES, next_attempt_at__lte=Now())

    def dead(self) -> EmailNotificationQuerySet:
        return self.filter(status=Status.DEAD_LETTERED)

    def failing(self) -> EmailNotificationQuerySet:
        """Return the e-mails that have failed and are unfinished an hour after they were due first."""
        first_due = Greatest("created_at", "readdressed_at", "resent_at")
        rows = self.filter(status__in=DUE_STATES).exclude(errors=[]).annotate(first_due=first_due)
        return rows.filter(first_due__lt=Now() - dt.timedelta(hours=1))

    def read_reported(self, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, StoredReport]:
        """Return the rows with these ids, as far as they exist, without a lock."""
        return self._read_reported("id = ANY(%s)", [list(ids)]) if ids else {}

    def read_accepted(self, *, provider: str, message_ids: Collection[str]) -> dict[uuid.UUID, StoredReport]:
        """Return the rows that the provider accepted under these message ids, without a lock.

        Each attached partition has a hash index of the ids, whose condition the statement repeats.
        """
        return self._read_reported(
            "provider_message_id = ANY(%s) AND provider_message_id <> '' AND provider = %s",
            [list(message_ids), provider],
        )

    def _read_reported(self, condition: str, values: list[Any]) -> dict[uuid.UUID, StoredReport]:
        with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
            cursor.execute(
                "SELECT id, source, status, recipient_email, traceparent, provider, provider_message_id,"  # noqa: S608
                " errors, delivered_at, bounced_at, complained_at FROM email_notifications"
                f" WHERE {condition}",
                values,
            )
            rows = cursor.fetchall()
        return {
            id: StoredReport(
                source,
                status,
                recipient_email,
                traceparent,
                provider,
                message_id,
                json.loads(errors),
                EventTimes(id, *times),
            )
            for id, source, status, recipient_email, traceparent, provider, message_id, errors, *times in rows
        }

    def accepted_lately(self, *, provider: str, addresses: Collection[str]) -> set[str]:
        """Return those of the addresses, in any case, to which the provider accepted an e-mail lately.

        Lately means within 30 days. A shop's own address may have millions of e-mails; only the newest of
        each address count.
        """
        if not addresses:
            return set()
        with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
            cursor.execute(
                """
                SELECT address FROM unnest(%s::text[]) AS address WHERE EXISTS (
                    SELECT FROM (
                        SELECT provider, sent_at FROM email_notifications
                        WHERE upper(recipient_email::text) = upper(address) ORDER BY id DESC LIMIT 100
                    ) AS newest
                    WHERE provider = %s AND sent_at > statement_timestamp() - interval '30 days'
                )
                """,
                [list(addresses), provider],
            )
            return {address for (address,) in cursor.fetchall()}

    def keep_earliest(self, times: Iterable[EventTimes]) -> set[uuid.UUID]:
        """Write the times that are earlier than the stored ones. Return the ids of the changed rows.

        A bounce's text comes with its time, and an erased row keeps none.
        """
        news = [time for time in times if any(time[1:])]
        if not news:
            return set()
        with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
            cursor.execute(
                """
                UPDATE email_notifications AS row SET
                    delivered_at = least(row.delivered_at, new.delivered_at),
                    bounced_at = least(row.bounced_at, new.bounced_at),
                    complained_at = least(row.complained_at, new.complained_at),
                    bounce_text = CASE WHEN new.bounce_text <> '' AND row.recipient_email <> %s
                            AND (row.bounced_at IS NULL OR new.bounced_at <= row.bounced_at)
                        THEN new.bounce_text ELSE row.bounce_text END,
                    updated_at = statement_timestamp()
                FROM unnest(%s::uuid[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[], %s::text[])
                    AS new (id, delivered_at, bounced_at, complained_at, bounce_text)
                WHERE row.id = new.id AND row.id = ANY(%s::uuid[])
                  AND (least(row.delivered_at, new.delivered_at), least(row.bounced_at, new.bounced_at),
                       least(row.complained_at, new.complained_at))
                      IS DISTINCT FROM (row.delivered_at, row.bounced_at, row.complained_at)
                RETURNING row.id
                """,
                [
                    ERASED_ADDRESS,
                    *(list(column) for column in zip(*news, strict=True)),
                    [new.id for new in news],
                ],
            )
            return {id for (id,) in cursor.fetchall()}


class EmailNotification(Partitioned):
    """An e-mail, rendered when the order changed, so that sending needs neither a template nor the order.

    Only `changes.settle`, `changes.manual_actions`, `outbox.claim` and inserts write `status`.
    """

    retention = EMAIL_RETENTION

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # A foreign key in the database would make partition upkeep lock the shop's main table. The transaction
    # that writes both rows guarantees that the order exists.
    order = models.ForeignKey(
        "orders.Order",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="notifications",
    )
    event_type = models.CharField(max_length=50)
    # The order's version after the change. NULL for a copy.
    order_version = models.IntegerField(null=True, editable=False)
    recipient_email = models.CharField(max_length=255)
    to_name = models.CharField(max_length=255, default="", blank=True)
    locale = models.CharField(max_length=35, default="en")
    subject = models.CharField(max_length=255)
    body = models.TextField()
    body_text = models.TextField()
    idempotency_key = models.CharField(max_length=255)
    resend_of = models.UUIDField(null=True, editable=False)  # the e-mail that this is a copy of
    # that of the order, empty for the shop's own
    source = models.CharField(max_length=100, default="", db_default="", blank=True, editable=False)
    # The sender as it was promised when the row was written
    profile = models.CharField(max_length=100, default="", db_default="", blank=True)  # MailProfile.source
    from_email = models.CharField(max_length=320, default="", db_default="", blank=True)
    reply_to = models.CharField(max_length=320, default="", db_default="", blank=True)
    # The list of the ids of each `EmailTextVersion` that the e-mail was made from; NULL for none.
    text_versions = models.JSONField(null=True, editable=False)
    # It shows the customer's note or the link to the order, which only the order's address may get.
    is_private = models.BooleanField(default=False, db_default=False, editable=False)
    # A shop copy has the id of the customer's e-mail, and the customer's address, so that an export and an
    # erasure of the customer find it.
    shop_copy_of = models.UUIDField(null=True, editable=False)
    customer_email = models.CharField(max_length=255, default="", db_default="", blank=True, editable=False)

    status = models.CharField(max_length=20, choices=Status, default=Status.PENDING)
    retry_count = models.PositiveIntegerField(default=0)
    max_retries = models.PositiveIntegerField(default=3)
    next_attempt_at = models.DateTimeField(db_default=Now())
    claimed_at = models.DateTimeField(null=True, editable=False)
    claim_token = models.UUIDField(null=True, editable=False)
    is_awaited = models.BooleanField(db_default=False, editable=False)  # a later one waits for it (turns.py)
    ended_by = models.CharField(max_length=20, choices=EndedBy, default="", db_default="", blank=True)
    last_error = models.TextField(default="", blank=True)  # words for people: no code decides by them
    errors = models.JSONField(default=list, blank=True)  # states/errors.py describes an entry

    provider = models.CharField(max_length=50, default="", blank=True)
    provider_message_id = models.CharField(max_length=255, default="", blank=True)
    correlation_id = models.CharField(max_length=128, default="", blank=True)
    traceparent = models.CharField(max_length=64, default="", blank=True)

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    sent_at = models.DateTimeField(null=True, editable=False)
    resent_at = models.DateTimeField(null=True, editable=False)  # when a person last resent the row
    # when an e-mail to an order without a usable address got one
    readdressed_at = models.DateTimeField(null=True, editable=False)
    delivered_at = models.DateTimeField(null=True, editable=False)
    bounced_at = models.DateTimeField(null=True, editable=False)
    complained_at = models.DateTimeField(null=True, editable=False)
    # What the recipient's server said of the bounce, without addresses.
    bounce_text = models.CharField(max_length=300, default="", db_default="", blank=True, editable=False)

    in_shops = staticmethod(by_source)

    objects = EmailNotificationQuerySet.as_manager()

    class Meta:
        db_table = "email_notifications"
        verbose_name = "e-mail"
        indexes = [
            # for claim() and the backlog's age
            models.Index(fields=["next_attempt_at"], name=DUE_INDEX, condition=Q(status__in=DUE_STATES)),
            # for recover()
            models.Index(
                fields=["claimed_at"],
                name="emailnotification_lease",
                condition=Q(status=Status.PROCESSING),
            ),
            # for the admin's dead letters, newest first, and their causes
            models.Index(
                fields=["-id"], name="emailnotification_dead", condition=Q(status=Status.DEAD_LETTERED)
            ),
            # a person's e-mails, newest first (API, the admin's list, personal data), and the admin's search
            # by an address or its beginning
            models.Index(any_case("recipient_email"), F("id").desc(), name="emailnotification_address"),
            # the shop copies of a customer's e-mails (personal data)
            models.Index(
                Upper("customer_email"), name="emailnotification_customer", condition=~Q(customer_email="")
            ),
            # an order's notifications (API, admin), and the earlier and later ones of one (turns.py)
            models.Index(fields=["order", "order_version"], name="emailnotification_order"),
            # a shop's e-mails, newest first: for who is bound to it, and the filter by shop
            models.Index(
                F("source"), F("id").desc(), name="emailnotification_source", condition=~Q(source="")
            ),
            # a shop's dead letters, and their causes
            models.Index(
                F("source"),
                F("id").desc(),
                name="emailnotification_source_dead",
                condition=Q(status=Status.DEAD_LETTERED) & ~Q(source=""),
            ),
            # the admin's search box
            HashIndex(fields=["correlation_id"], name="emailnotification_correlated"),
            HashIndex(
                fields=["provider_message_id"],
                name="emailnotification_at_provider",
                condition=~Q(provider_message_id=""),
            ),
            # the lists of suppressed and discarded e-mails, newest first (API, admin), which are few
            *(
                models.Index(fields=["-id"], name=f"emailnotification_{status}", condition=Q(status=status))
                for status in ("suppressed", "discarded")
            ),
            # the list of bounced e-mails, newest first, which are few
            models.Index(
                fields=["-id"], name="emailnotification_bounced", condition=Q(bounced_at__isnull=False)
            ),
            # the sums of each minute: e-mails sent, delivered and bounced in it
            BrinIndex(
                *(_by_minute(column) for column in ("sent_at", "delivered_at", "bounced_at")),
                name="emailnotification_minutes",
                autosummarize=True,
                pages_per_range=64,
            ),
            # the sums of each minute: the attempts that failed in it. An index on updated_at would make
            # every update write to every index.
            models.Index(LAST_ERROR_AT, name="emailnotification_errors", condition=~Q(errors=[])),
        ]
        constraints = [
            models.CheckConstraint(condition=_has_reason_of_state(), name="emailnotification_reason"),
            models.CheckConstraint(
                condition=_has_columns_of(Status.SENT), name="emailnotification_sent_has_its_time"
            ),
            models.CheckConstraint(
                condition=_has_columns_of(Status.PROCESSING), name="emailnotification_claim_is_whole"
            ),
        ]
        permissions = [
            ("resend_emailnotification", "Can resend e-mails"),
            ("resend_hopeless", "Can resend all e-mails of a cause that a resend does not remove"),
            ("discard_emailnotification", "Can give up e-mails"),
            ("copy_emailnotification", "Can send copies of e-mails"),
            ("force_provider", "Can force a provider open or closed"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} of order {self.order_id}"

    @property
    def failed_at(self) -> dt.datetime | None:
        """The time of a dead letter's last failed attempt, or None if it had none or is not a dead letter."""
        at: str | None = self.last_error_at  # type: ignore[attr-defined] # the query annotates LAST_ERROR_AT
        if self.status != Status.DEAD_LETTERED or not at:
            return None
        try:
            return dt.datetime.fromisoformat(at)
        except ValueError:
            return None


class MailProfile(models.Model):
    """The sender and the look of the e-mails of one shop, that is of the orders of one source.

    The row with an empty source is for own orders, in place of the settings.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    source = models.CharField(max_length=100, unique=True, default="", blank=True)
    from_email = models.CharField(max_length=320)
    reply_to = models.CharField(max_length=320, default="", blank=True)
    shop_name = models.CharField(max_length=200)
    postal_address = models.CharField(max_length=500)
    url = models.CharField(max_length=500, default="", blank=True)
    default_locale = models.CharField(max_length=35, default="", blank=True)
    time_zone = models.CharField(max_length=50, default="", blank=True)  # of dates; empty for UTC
    colour = models.CharField(max_length=7, default="", blank=True)  # of the e-mails' head
    logo_url = models.CharField(max_length=500, default="", blank=True)
    # The shop's address that gets a shop copy of each e-mail; empty for none.
    copy_to = models.CharField(max_length=255, default="", blank=True)
    # Options of the providers' accounts, by provider: those of `Declaration.account`.
    account = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    in_shops = staticmethod(by_source)

    class Meta:
        db_table = "mail_profiles"
        ordering = ["source"]

    def __str__(self) -> str:
        return self.source or OWN_ORDERS


class Suppression(models.Model):
    """A suppressed address, as a keyed hash. Lifting the suppression deletes the row."""

    class Reason(models.TextChoices):
        HARD_BOUNCE = "hard_bounce", "the address bounced"
        COMPLAINT = "complaint", "its owner complained"
        MANUAL = "manual", "a person said so"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    address_hash = models.CharField(max_length=64, unique=True, editable=False)
    reason = models.CharField(max_length=20, choices=Reason)
    provider = models.CharField(max_length=50, default="", blank=True, editable=False)
    notification_id = models.UUIDField(null=True, editable=False)  # the e-mail that gave the reason
    # Its source, which stays when the e-mail is archived. NULL if no e-mail gave the reason.
    source = models.CharField(max_length=100, null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    in_shops = staticmethod(by_source)

    class Meta:
        db_table = "suppressions"
        default_permissions = ("view", "add")
        permissions = [
            ("lift_suppression", "Can lift suppressions"),
            ("lift_complaint", "Can lift suppressions after a complaint"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(reason__in=["hard_bounce", "complaint", "manual"]),
                name="suppressions_reason_known",
            ),
        ]
        indexes = [
            # a shop's suppressions, newest first
            models.Index(
                F("source"), F("id").desc(), name="suppressions_source", condition=Q(source__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.address_hash[:12]}… ({self.reason})"


class ProviderTest(models.Model):
    """One real e-mail that tries a provider, its answer, and what its webhook said. It has no other row."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)  # the e-mail's
    provider = models.CharField(max_length=50)
    address_hash = models.CharField(max_length=64)
    accepted = models.BooleanField(null=True)  # NULL while it is sent, and if the answer does not show it
    answer = models.TextField(default="", blank=True)  # in words; has no address but the sender's
    reported = models.CharField(max_length=50, default="", blank=True)  # the last event's kind
    sent_at = models.DateTimeField(db_default=Now(), editable=False)

    purge_rules = (PurgeRule("sent_at", 7),)  # as the heartbeats with which it is compared

    class Meta:
        db_table = "provider_tests"
        default_permissions = ()

    def __str__(self) -> str:
        return f"test of {self.provider}"


class EmailText(models.Model):
    """The own sentences of one e-mail, as an editor wrote them in the admin. The row has the draft.

    `source` is that of a `MailProfile`; the empty one is for every shop. `locale` is a language of the
    catalogues. `event_type` may be `sentences.LAYOUT`, for the sentences that all e-mails share.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    source = models.CharField(max_length=100, default="", blank=True)
    event_type = models.CharField(max_length=50)
    locale = models.CharField(max_length=20)
    sentences = models.JSONField(default=list)  # of `published.TextEntry`
    published = models.PositiveIntegerField(null=True, editable=False)  # the version in use; NULL for none
    edited_by = models.CharField(max_length=150, default="", blank=True)
    edited_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "email_texts"
        default_permissions = ("view",)
        permissions = [("edit_texts", "Can edit and publish the texts of e-mails")]
        constraints = [
            models.UniqueConstraint(fields=["source", "event_type", "locale"], name="email_texts_key"),
        ]

    def __str__(self) -> str:
        return text_name(source=self.source, event_type=self.event_type, locale=self.locale)

    @staticmethod
    def in_shops(sources: Collection[str]) -> Q:
        """Return the condition of the texts of these sources, and of those for every shop, which they use."""
        return Q(source__in=["", *sources])


class EmailTextVersion(models.Model):
    """The own sentences as they were published once, with the release's originals. It never changes."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    text = models.ForeignKey(EmailText, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    sentences = models.JSONField(default=list)
    restored_from = models.PositiveIntegerField(null=True, editable=False)  # the number of another version
    published_by = models.CharField(max_length=150, default="", blank=True)
    published_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "email_text_versions"
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["text", "number"], name="email_text_versions_number"),
            models.CheckConstraint(condition=Q(number__gt=0), name="email_text_versions_count_from_one"),
        ]

    def __str__(self) -> str:
        return f"version {self.number} of {self.text}"


def text_name(*, source: str, event_type: str, locale: str) -> str:
    """Return the words for the own sentences of an e-mail, such as "order.paid, de, shop-b"."""
    return ", ".join(filter(None, (event_type, locale, source)))
