"""The registry of e-mail providers. A new provider is a folder here and one line in `NAMES`.

The settings import it: neither this module nor a provider's `__init__` may import models or settings.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import secrets
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from environs import Env

from notifications.providers.explanations import Explanation

#: In the order in which the docs and the admin list them.
NAMES = (
    "sendgrid",
    "ses",
    "resend",
    "postmark",
    "mailgun",
    "smtp",
)

#: The default of EMAIL_PROVIDERS; see `default_providers`.
DEFAULT = NAMES[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable of a provider.

    `anymail` is the key of Django's setting ANYMAIL that the value becomes; if it is empty, the value becomes
    a setting. `fallback` is the variable to read if this one is unset. `parse` returns the settings that a
    URL stands for, or raises ValueError with a text that follows the variable's name.
    """

    name: str
    default: str | None = ""
    anymail: str = ""
    fallback: str = ""
    parse: Callable[[str], Mapping[str, Any]] | None = None

    def read(self, env: Env) -> str | None:
        """Return the value or the default."""
        default = env.str(self.fallback, None) if self.fallback else None
        default = self.default if default is None else default
        return env.str(self.name, default) or default  # empty counts as unset


class Protocol(enum.Enum):
    """The kind of the codes in a provider's errors: HTTP statuses or SMTP replies."""

    HTTP = enum.auto()
    SMTP = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """The facts about a provider that other packages need without loading it.

    provider     the dotted path of its `Provider`
    webhook      the dotted path of its `Webhook`; empty if it posts no events
    webhook_key  the name of the setting that verifies those posts
    check_key    raises ValueError, with the reason, for a webhook key that cannot be read
    api_key      the name of the setting without which it accepts no mail; empty if no setting shows that
    make_key     returns a new webhook key: the sandbox's signing key and the verifying key
    key_pattern  a pattern of its keys, which masks them in logs; the first group stays
    dialect      the dotted path of the `Dialect` in which the sandbox plays it; empty if it does not
    protocol     the kind of the codes in its errors
    causes       patterns of errors that only this provider gives, with their explanations
    blamed       patterns of errors, with the setting that causes them, where `causes.blame` cannot tell
    account      options of its account that a mail profile can set, with their names in anymail's esp_extra
    own_list     where its own list of suppressed addresses is cleared; empty if it keeps none
    sandbox      settings that point to the sandbox; `{sandbox}` stands for the sandbox's URL
    """

    name: str
    provider: str
    settings: tuple[Setting, ...]
    api_key: str = ""
    webhook: str = ""
    webhook_key: str = ""
    check_key: Callable[[str], object] | None = None
    key_pattern: str = ""
    dialect: str = ""
    protocol: Protocol = Protocol.HTTP
    causes: tuple[tuple[str, Explanation], ...] = ()
    blamed: tuple[tuple[str, str], ...] = ()
    make_key: Callable[[], tuple[str, str]] | None = None
    account: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sandbox: Mapping[str, str] = dataclasses.field(default_factory=dict)
    own_list: str = ""

    @property
    def url_setting(self) -> str:
        """The name of the setting with the address of the API or server."""
        names = (name for name, value in self.sandbox.items() if "{sandbox}" in value)
        return next(names, self.settings[0].name)


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """The providers' settings: those in ANYMAIL, the others, and all of them by environment variable."""

    anymail: Mapping[str, Any]
    django: Mapping[str, Any]
    by_name: Mapping[str, Any]


@functools.cache
def declarations() -> Mapping[str, Declaration]:
    """Return every provider's declaration by its name."""
    modules = [import_module(f"notifications.providers.{name}") for name in NAMES]
    return MappingProxyType({module.DECLARATION.name: module.DECLARATION for module in modules})


def read_settings(env: Env) -> Values:
    """Read every provider's settings.

    Raise `ImproperlyConfigured` for a URL that cannot be parsed, and for a webhook key that cannot be read:
    its endpoint would refuse every post.
    """
    anymail: dict[str, Any] = {}
    django: dict[str, Any] = {}
    by_name: dict[str, Any] = {}
    for declared in declarations().values():
        for setting in declared.settings:
            value = by_name[setting.name] = setting.read(env)
            if setting.parse:
                try:
                    django |= setting.parse(value or "")
                except ValueError as error:
                    raise ImproperlyConfigured(f"{setting.name} {error}") from None
            elif setting.anymail:
                anymail[setting.anymail] = value
            else:
                django[setting.name] = value
        key = by_name.get(declared.webhook_key)
        if key and declared.check_key:
            try:
                declared.check_key(key)
            except ValueError as error:
                raise ImproperlyConfigured(f"{declared.webhook_key} cannot be read: {error}.") from error
    return Values(anymail, django, by_name)


def default_providers(values: Values, *, debug: bool) -> list[str]:
    """Return the default of EMAIL_PROVIDERS.

    With DEBUG off, warn, and raise `ImproperlyConfigured` if the default provider's API key is unset: with a
    forgotten setting no e-mail would be sent.
    """
    if debug:
        return [DEFAULT]
    key = declarations()[DEFAULT].api_key
    if not values.by_name[key]:
        choice = ", ".join(declarations())
        raise ImproperlyConfigured(
            f"EMAIL_PROVIDERS is not set. List providers in order of preference, out of: {choice}."
        )
    warnings.warn(
        f"EMAIL_PROVIDERS is not set, so e-mails go to {DEFAULT}, whose {key} is set. Set EMAIL_PROVIDERS.",
        RuntimeWarning,
        stacklevel=2,
    )
    return [DEFAULT]


def check_password_setting(text: str) -> None:
    """Raise ValueError unless `text` is user:password, for basic authentication."""
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise ValueError("it must be user:password, as in the webhook's address")


def make_password_setting() -> tuple[str, str]:
    """Return a random user:password twice: the same value signs and verifies."""
    password = f"sandbox:{secrets.token_urlsafe(24)}"
    return password, password
