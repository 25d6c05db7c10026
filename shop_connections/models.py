"""The tables of connections: the connected shops, and what they posted."""

from __future__ import annotations

import datetime as dt
import hashlib
from urllib.parse import urlsplit

from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce, Now

from notifications.changes.age import describe_old_news
from notifications.states.transitions import EndedBy, Status, Withheld
from runtime.binding import by_source
from runtime.database.ids import new_id
from runtime.database.purge_rules import PurgeRule
from runtime.personal_data import ERASED
from shop_connections.encryption import Unreadable, decrypt

#: The state of an e-mail of a trial.
TRIAL = Withheld(Status.DISCARDED, EndedBy.TRIAL, "not sent: trial")


class ShopConnectionQuerySet(models.QuerySet["ShopConnection"]):
    def active(self) -> ShopConnectionQuerySet:
        return self.exclude(state=ShopConnection.State.OFF)


class ShopConnection(models.Model):
    """A shop whose platform posts its webhooks to /connect/<source>."""

    class Platform(models.TextChoices):
        WOOCOMMERCE = "woocommerce", "WooCommerce"
        SALEOR = "saleor", "Saleor"

    class State(models.TextChoices):
        WAITING = "waiting", "waits for the first post"
        TRIAL = "trial", "trial: no e-mail leaves"
        LIVE = "live", "live"
        OFF = "off", "off"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # The name of the shop's orders, as in ORDER_SOURCES.
    source = models.CharField(max_length=100, unique=True)
    platform = models.CharField(max_length=20, choices=Platform, default=Platform.WOOCOMMERCE)
    address = models.CharField(max_length=500)  # of the shop, https
    # Further addresses of the shop, such as one for each language, and those of copies, whose posts are left
    # out.
    addresses = models.JSONField(default=list, db_default=[], editable=False)
    copies = models.JSONField(default=list, db_default=[], editable=False)
    # Encrypted (`encryption`): the secret of the webhook or of its address, and the API's key and secret,
    # empty for none.
    secret = models.TextField(editable=False)
    api_key = models.TextField(default="", db_default="", editable=False)
    api_secret = models.TextField(default="", db_default="", editable=False)
    state = models.CharField(max_length=20, choices=State, default=State.WAITING, editable=False)
    # Changes from this time on, by the shop's clock, send e-mails while the connection is live.
    live_at = models.DateTimeField(null=True, editable=False)
    # The orders below another one that came, of no marketplace that is known, and what a person says that
    # they are: {seen, are}, "own" or "vendors".
    parents = models.JSONField(default=dict, db_default={}, editable=False)
    # The comparison at that moment: {began_at, done_at, problem}.
    going_live = models.JSONField(null=True, editable=False)
    # Statuses of the shop's plug-ins -> `Order.Status`, or "" to ignore one.
    statuses = models.JSONField(default=dict, blank=True)
    last_post_at = models.DateTimeField(null=True, editable=False)  # at most `EVERY` too early
    # The last post whose signature was missing or wrong, at most `EVERY` too early. Anybody can send one.
    refused_at = models.DateTimeField(null=True, editable=False)
    # The last comparison with the shop's API that worked, and why the next one failed, or "".
    checked_at = models.DateTimeField(null=True, editable=False)
    check_problem = models.TextField(default="", db_default="", editable=False)
    #: So many orders of the last comparison were too large.
    left_out = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    tried_at = models.DateTimeField(null=True, editable=False)  # the last hourly comparison that began
    # Where a comparison goes on whose time was over: {since, began_at, place}.
    unfinished = models.JSONField(null=True, editable=False)
    # The comparison that a person asked for: {asked_at, began_at, read, done_at, missing, is_whole, problem}.
    comparison = models.JSONField(null=True, editable=False)
    # Events of ours -> the shop's own e-mail that is left on, so that ours about them are not sent. None
    # until a person chose.
    left_on = models.JSONField(null=True, editable=False)
    # The first change since going live about which nobody sent an e-mail: {event, reference}.
    unmailed = models.JSONField(null=True, editable=False)
    # What the platform keeps of its installation in the shop, without secrets. Its folder knows the members.
    installation = models.JSONField(default=dict, db_default={}, editable=False)
    # When a worker asks the shop for it anew (`refresh`), if the platform has something to ask for.
    refresh_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    #: `last_post_at` and `refused_at` are written this often.
    EVERY = dt.timedelta(seconds=5)

    in_shops = staticmethod(by_source)

    objects = ShopConnectionQuerySet.as_manager()

    class Meta:
        db_table = "shop_connections"
        ordering = ["source"]
        verbose_name = "connection"
        default_permissions = ("view", "add", "change")
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["waiting", "trial", "live", "off"]),
                name="shop_connections_state_known",
            ),
        ]

    def __str__(self) -> str:
        return self.source

    def is_readable(self) -> bool:
        """Return whether CONNECTION_KEY decrypts the secrets."""
        try:
            for secret in filter(None, (self.secret, self.api_key, self.api_secret)):
                decrypt(secret)
        except Unreadable:
            return False
        return True

    def has_host(self, url: str) -> bool:
        """Return whether a link leads to the host of one of the shop's addresses."""
        return urlsplit(url).hostname in {urlsplit(address).hostname for address in self.all_addresses}

    @property
    def secret_mark(self) -> str:
        """Return a text that changes with the secret and does not tell it."""
        return hashlib.sha256(self.secret.encode()).hexdigest()[:16]

    @property
    def all_addresses(self) -> list[str]:
        return [self.address, *self.addresses]

    def has_address(self, address: str) -> bool:
        """Return whether an order with a link to this address is the shop's. One without a link is."""
        return not address or _site(address) in map(_site, self.all_addresses)

    def is_copy(self, address: str) -> bool:
        return bool(address) and _site(address) in {_site(copy) for copy in self.copies}

    def has_channel(self, channel: str) -> bool:
        """Return whether orders of a sales channel count. Without one, an order does."""
        return not channel or self.installation.get("channel", "") in ("", channel)

    def is_catching_up(self, now: dt.datetime) -> bool:
        """Return whether posts since going live wait until the orders of before have been compared."""
        is_live = self.state == self.State.LIVE and self.live_at is not None and self.live_at <= now
        return is_live and bool(self.api_key) and not (self.going_live or {}).get("done_at")

    def withheld(self, at: dt.datetime) -> Withheld | None:
        """Return the state of the e-mail about a change at this time by the shop's clock, if none is sent.

        Before `live_at` the shop sent its own.
        """
        if self.state != self.State.LIVE or self.live_at is None or at < self.live_at:
            return TRIAL
        return describe_old_news(at)


def _site(address: str) -> tuple[str, str]:
    """Return the host and path of an address. A shop may be called over http and https."""
    parts = urlsplit(address)
    return parts.netloc.lower(), parts.path.rstrip("/")


class PostState(models.TextChoices):
    """The states of a post. Only one that is `done` had its effects."""

    WAITING = "waiting"  # for a worker
    DONE = "done"
    UNUSABLE = "unusable"  # the reason says why; a person can have it tried again
    MISSING = "missing"  # read from the shop's API, and different here


class ConnectionPostQuerySet(models.QuerySet["ConnectionPost"]):
    def waiting(self) -> ConnectionPostQuerySet:
        """Return the posts that a worker has to process, now or later, of all connections."""
        return self.filter(state=PostState.WAITING)

    def due(self) -> ConnectionPostQuerySet:
        """Return the waiting posts that can be processed now."""
        return self._now().filter(failed_readings=None)

    def to_read(self) -> ConnectionPostQuerySet:
        """Return the waiting posts whose order is to be read from the shop's API now."""
        return self._now().filter(failed_readings__isnull=False)

    def _now(self) -> ConnectionPostQuerySet:
        return self.waiting().filter(Q(due_at=None) | Q(due_at__lte=Now()))

    def unusable(self) -> ConnectionPostQuerySet:
        return self.filter(state=PostState.UNUSABLE)

    def unusable_still(self) -> ConnectionPostQuerySet:
        """Return the unusable posts for which no later post of the order has made up."""
        later = ConnectionPost.objects.filter(
            order_id=OuterRef("order_id"), id__gt=OuterRef("id"), state=PostState.DONE, reason=""
        )
        # One that came late has an older state of the order.
        since = Coalesce(OuterRef("modified_at"), F("modified_at"))
        later = later.filter(Q(modified_at=None) | Q(modified_at__gte=since))
        return self.unusable().exclude(Exists(later))

    def erase(self) -> int:
        """Empty the posts, which are then done. Return their number."""
        return self.update(**{name: RawSQL(sql, []) for name, sql in ConnectionPost.erased_texts.items()})  # noqa: S611

    def missing(self) -> ConnectionPostQuerySet:
        """Return the orders that the shop's API has otherwise than they are here."""
        return self.filter(state=PostState.MISSING)


class ConnectionPost(models.Model):
    """A post of a connected shop with a valid signature, or an order that was read from the shop's API.

    It is stored before it is understood. The transaction of its effects makes it `done`.
    """

    #: Days after which a post is deleted, whatever became of it.
    KEPT_DAYS = 14

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    source = models.CharField(max_length=100, editable=False)
    body = models.TextField(editable=False)
    received_at = models.DateTimeField(db_default=Now(), editable=False)
    done_at = models.DateTimeField(null=True, editable=False)
    reason = models.CharField(max_length=1000, default="", db_default="", editable=False)
    # The shop's word for the order's status, if the post is unusable until somebody says what it means.
    unknown_status = models.TextField(default="", db_default="", editable=False)
    state = models.CharField(
        max_length=20, choices=PostState, default=PostState.WAITING, db_default="waiting", editable=False
    )
    # When a post is processed again that has a parcel of which another post may say more, or when its order
    # is read again.
    due_at = models.DateTimeField(null=True, editable=False)
    # How often its order could not be read from the shop's API. None if the body tells the order.
    failed_readings = models.PositiveSmallIntegerField(null=True, editable=False)
    # Our id of the order, and the keyed hash of each address in the body.
    order_id = models.UUIDField(null=True, editable=False)
    address_hashes = models.JSONField(default=list, db_default=[], editable=False)
    # When the shop saved the order, by its clock, and the address to which the order's own link leads.
    modified_at = models.DateTimeField(null=True, editable=False)
    address = models.CharField(max_length=500, default="", db_default="", editable=False)
    # It was read from the shop's API, and what it changes was before the connection or before it went live.
    is_history = models.BooleanField(default=False, db_default=False, editable=False)
    # The number as the shop shows it, once the post was read.
    reference = models.CharField(max_length=100, default="", db_default="", editable=False)

    #: Nothing is left to process of an erased post, so it is done.
    erased_texts = {
        "body": f"'{ERASED}'",
        "reason": "''",
        "unknown_status": "''",
        "state": "'done'",
        "done_at": "coalesce(done_at, statement_timestamp())",
    }
    purge_rules = (PurgeRule("received_at", KEPT_DAYS),)

    in_shops = staticmethod(by_source)

    objects = ConnectionPostQuerySet.as_manager()

    class Meta:
        db_table = "connection_posts"
        verbose_name = "post of a shop"
        verbose_name_plural = "posts of shops"
        default_permissions = ("view",)
        permissions = [("retry_connectionpost", "Can have posts of shops tried again")]
        indexes = [
            # the purge
            models.Index(fields=["received_at"], name="connection_posts_age"),
            # the export and the erasure of a person
            models.Index(
                fields=["order_id"], name="connection_posts_order", condition=Q(order_id__isnull=False)
            ),
            GinIndex(fields=["address_hashes"], name="connection_posts_addresses"),
            # the next post of a connection; unusable posts, and missing orders, which are few
            models.Index(
                F("source"),
                F("state"),
                F("is_history").desc(),
                F("id"),
                name="connection_posts_open",
                condition=Q(state__in=["waiting", "unusable", "missing"]),
            ),
            # the last order of a connection
            models.Index(
                F("source"),
                F("done_at").desc(),
                name="connection_posts_done",
                condition=Q(done_at__isnull=False),
            ),
        ]
        constraints = [
            # a post is done if, and only if, it has its time
            models.CheckConstraint(
                condition=Q(state="done", done_at__isnull=False)
                | Q(state__in=["waiting", "unusable", "missing"], done_at=None),
                name="connection_posts_done_has_its_time",
            )
        ]

    def __str__(self) -> str:
        return self.reference or str(self.id)
