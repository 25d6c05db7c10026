"""The audit: a row for each act of a person, of an API token or of a command."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from runtime.binding import by_source
from runtime.database.ids import new_id
from runtime.database.purge_rules import PurgeRule

#: Days after which a row keeps only the network of its address.
ADDRESS_DAYS = 90
LONGEST_YEAR_DAYS = 366

#: SQL: whether the row has a whole address. A network has a slash.
_WHOLE_ADDRESS = "address <> '' AND strpos(address, '/') = 0"
#: SQL: the /24 of an IPv4 address, and the /48 of an IPv6 address.
_NETWORK = "network(set_masklen(address::inet, CASE family(address::inet) WHEN 4 THEN 24 ELSE 48 END))::text"


class AuditRow(models.Model):
    """One act. `runtime.audit.record` writes it, in the transaction of the act.

    It has only fixed words, codes, ids and keyed hashes, and no data of a customer but the order's id. An
    exception is the reason, which a person typed. The app's role may change only that, and the address.
    """

    class Kind(models.TextChoices):
        """The subject of an act. Stored: each value must keep its meaning."""

        LOGIN = "login", "login"
        LOGIN_PAUSE = "login_pause", "pause after wrong passwords"
        DOWNLOAD = "download", "download"
        EXPORT = "export", "export of a person"
        ERASURE = "erasure", "erasure of a person"
        TEST_EMAIL = "test_email", "test e-mail"
        RESEND = "resend", "resent e-mail"
        COPY = "copy", "copy of an e-mail"
        EMAIL = "email", "other change of an e-mail"
        ADDRESS = "address", "corrected address"
        PAYMENT = "payment", "unexpected payment"
        SUPPRESSION = "suppression", "suppression"
        EVENT = "event", "event"
        POST = "post", "post of a shop"
        JOB = "job", "background job"
        TOKEN = "token", "API token"
        TEXT = "text", "texts"
        PROFILE = "profile", "profile"
        CONNECTION = "connection", "connection"
        PAUSE = "pause", "pause"
        BREAKER = "breaker", "forced breaker"
        SETUP = "setup", "users, groups and the rest"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    at = models.DateTimeField(db_default=Now(), editable=False)
    kind = models.CharField(max_length=30)  # a `Kind`; a newer release may have others
    who = models.CharField(max_length=200)  # as text: a login, a token's name, or the account of a command
    address = models.CharField(max_length=60, default="", db_default="")  # the client's, or its network
    # The shop: "" for own orders, null for all shops and for what belongs to none.
    source = models.CharField(max_length=100, null=True)
    order_id = models.UUIDField(null=True)
    subject_type = models.CharField(max_length=100, default="", db_default="")  # such as orders.order
    subject_id = models.CharField(max_length=255, default="", db_default="")
    subject = models.CharField(max_length=200, default="", db_default="")  # its name, in our words
    act = models.TextField()
    changes = models.JSONField(null=True)  # {"shop_name": ["Tea", "Tea & Co"]}: from what, to what
    reason = models.TextField(default="", db_default="")

    in_shops = staticmethod(by_source)
    purge_rules = (
        PurgeRule("at", lambda: settings.ARCHIVE_YEARS * LONGEST_YEAR_DAYS),
        PurgeRule("at", ADDRESS_DAYS, keep=f"NOT ({_WHOLE_ADDRESS})", erased={"address": _NETWORK}),
    )

    class Meta:
        db_table = "audit_rows"
        verbose_name = "audit row"
        default_permissions = ()  # admin.view_logentry shows it
        indexes = [
            models.Index(fields=["at"], name="audit_rows_by_time"),  # the purge, and the page's filter
            # the purge of addresses
            models.Index(
                fields=["at"],
                name="audit_rows_whole_address",
                condition=~Q(address="") & ~Q(address__contains="/"),
            ),
            # an order's timeline, and an erasure
            models.Index(
                fields=["order_id"], name="audit_rows_by_order", condition=Q(order_id__isnull=False)
            ),
            # an e-mail's page, a profile's history, and an erasure
            models.Index(fields=["subject_id"], name="audit_rows_by_subject", condition=~Q(subject_id="")),
            # the page's search and filters
            models.Index(fields=["who", "-id"], name="audit_rows_by_who"),
            models.Index(fields=["kind", "-id"], name="audit_rows_by_kind"),
            # the page of a person who is bound to some shops
            models.Index(
                fields=["source", "-id"], name="audit_rows_by_source", condition=Q(source__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.act} ({self.who})"
