"""The e-mail providers that exist. A new one is a folder here and one line in `NAMES`.

Read by the settings, the checks, the webhook's address, the sandbox and the admin. It is imported by the
settings, so neither this module nor a provider's `__init__` imports models or settings.
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

#: What EMAIL_PROVIDERS is where it may be left unset.
DEFAULT = NAMES[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable of a provider; the default's type is the value's.

    With `anymail` the value goes into Django's ANYMAIL setting under that name, else it is a setting of its
    own. `fallback` is another variable that is read where this one is unset.
    """

    name: str
    default: str | int | bool | None = ""
    secret: bool = False
    anymail: str = ""
    fallback: str = ""
    validate: Callable[[Any], object] | None = None

    def read(self, env: Env) -> Any:
        """Return the value, or the default; raise environs' error for a bad one."""
        default: Any = env.str(self.fallback, None) if self.fallback else None
        default = self.default if default is None else default
        if isinstance(self.default, bool):
            return env.bool(self.name, default)
        if isinstance(self.default, int):
            return env.int(self.name, default, validate=self.validate)
        return env.str(self.name, default) or default  # set and empty is as good as unset


class Protocol(enum.Enum):
    """What the codes in a provider's errors are: an HTTP API's, or SMTP replies."""

    HTTP = enum.auto()
    SMTP = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """What the rest of the program must know of a provider without loading it.

    sending      the dotted path of its `Provider`
    webhook      the dotted path of its `Webhook`; empty where it posts no events
    webhook_key  the name of the setting that verifies those posts
    check_key    raises ValueError with a sentence about a webhook key that cannot be read
    api_key      the name of the setting without which it takes no mail; empty where that cannot be told
    make_key     makes a webhook key: what the sandbox signs with, and what verifies it
    key_pattern  what its keys look like in a text, to mask them in logs; its first group stays
    dialect      the dotted path of the `Dialect` in which the sandbox plays it; empty where it does not
    protocol     how its errors are read
    causes       regular expressions of errors that only this provider has, and what they mean
    sandbox      settings that lead to the sandbox instead; `{sandbox}` stands for its URL
    """

    name: str
    sending: str
    settings: tuple[Setting, ...]
    api_key: str = ""
    webhook: str = ""
    webhook_key: str = ""
    check_key: Callable[[str], object] | None = None
    key_pattern: str = ""
    dialect: str = ""
    protocol: Protocol = Protocol.HTTP
    causes: tuple[tuple[str, Explanation], ...] = ()
    make_key: Callable[[], tuple[str, str]] | None = None
    sandbox: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """The providers' settings: those inside ANYMAIL, the others, and all by their environment names."""

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

    Raise `ImproperlyConfigured` for a webhook key that cannot be read: the endpoint would refuse every post.
    """
    anymail: dict[str, Any] = {}
    django: dict[str, Any] = {}
    by_name: dict[str, Any] = {}
    for declared in declarations().values():
        for setting in declared.settings:
            value = by_name[setting.name] = setting.read(env)
            if setting.anymail:
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
    """Return what EMAIL_PROVIDERS is where it is unset.

    With DEBUG off the default holds only where its API key is set, and then with a warning; otherwise raise
    `ImproperlyConfigured`, for a forgotten setting would keep every e-mail waiting.
    """
    if debug:
        return [DEFAULT]
    key = declarations()[DEFAULT].api_key
    if not values.by_name[key]:
        choice = ", ".join(declarations())
        raise ImproperlyConfigured(
            f"EMAIL_PROVIDERS is not set. Name the providers in order of preference, out of: {choice}."
        )
    warnings.warn(
        f"EMAIL_PROVIDERS is not set, so e-mails go to {DEFAULT}, whose {key} is set. Set EMAIL_PROVIDERS.",
        RuntimeWarning,
        stacklevel=2,
    )
    return [DEFAULT]


def check_password_setting(text: str) -> None:
    """Raise ValueError unless `text` is user:password, as basic authentication wants it."""
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise ValueError("it must be user:password, as it stands in the webhook's address")


def make_password_setting() -> tuple[str, str]:
    """Return a random user:password, which proves and verifies."""
    password = f"sandbox:{secrets.token_urlsafe(24)}"
    return password, password
