"""The look and the sender of each shop's e-mails, as each process knows them.

`find_profile` reads no table (see `cached_rows`). The settings are the profile of every order whose source
has no `MailProfile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.conf import settings

from notifications.models import MailProfile
from runtime.process.cached_rows import CachedRows, version_of

#: SHOP_NAME of an installation that has not set it, and the beginning of its SHOP_ADDRESS.
EXAMPLE_SHOP = "Example Shop"


@dataclass(frozen=True, slots=True)
class Profile:
    """The sender and the look of one shop's e-mails. `MailProfile` describes the fields."""

    source: str
    from_email: str
    reply_to: str
    shop_name: str
    postal_address: str
    url: str
    default_locale: str = ""
    time_zone: str = ""
    colour: str = ""
    logo_url: str = ""
    copy_to: str = ""
    #: Options of the providers' accounts, by provider.
    account: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def from_settings() -> Profile:
    """Return the profile of orders whose source has no row."""
    return Profile(
        source="",
        from_email=settings.DEFAULT_FROM_EMAIL,
        reply_to=settings.REPLY_TO_EMAIL,
        shop_name=settings.SHOP_NAME,
        postal_address=settings.SHOP_ADDRESS,
        url=settings.SHOP_URL,
    )


def find_profile(source: str) -> Profile:
    """Return the profile of an order's source, or that of the settings."""
    return profiles.get().get(source) or from_settings()


def profile_of(row: MailProfile) -> Profile:
    return Profile(
        source=row.source,
        from_email=row.from_email,
        reply_to=row.reply_to,
        shop_name=row.shop_name,
        postal_address=row.postal_address,
        url=row.url,
        default_locale=row.default_locale,
        time_zone=row.time_zone,
        colour=row.colour,
        logo_url=row.logo_url,
        copy_to=row.copy_to,
        account=row.account,
    )


#: By source.
profiles: CachedRows[Profile] = CachedRows(
    version=version_of(MailProfile._meta.db_table),
    load=lambda: {row.source: profile_of(row) for row in MailProfile.objects.all()},
)
