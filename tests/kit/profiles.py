"""Mail profiles of two shops, which every process of a test knows at once."""

from __future__ import annotations

from typing import Any

from notifications.models import MailProfile
from runtime.process import cached_rows


def save_profile(source: str = "shop-a", **fields: Any) -> MailProfile:
    """Save the profile of a source in place of the one that it has, and let this process know it."""
    name = source or "own"
    values = {
        "from_email": f"{name} <orders@{name}.test>",
        "shop_name": f"The {name}",
        "postal_address": f"1 {name} Road",
        "url": f"https://{name}.test",
    }
    profile, _ = MailProfile.objects.update_or_create(source=source, defaults=values | fields)
    cached_rows.refresh()
    return profile
