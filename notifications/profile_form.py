"""The checks of a mail profile, for the admin and for `manage.py profiles load`."""

from __future__ import annotations

import queue
import re
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from email.utils import parseaddr
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.utils.html import format_html
from django.utils.safestring import SafeString

from notifications.connected import order_sources
from notifications.content.rendering import is_locale
from notifications.logo import BadLogo, LogoNotChecked, check_logo
from notifications.models import OWN_ORDERS, MailProfile
from notifications.providers.headers import formatted_address
from notifications.providers.registry import declarations
from runtime.addresses import NotAnAddress, read_address
from runtime.binding import UNBOUND, Binding
from runtime.names import Reserved, refuse_reserved
from runtime.texts import name_invisible, one_line
from runtime.time_zones import is_zone_name

_CHANGED = "Another user has changed this profile since you opened it. Copy your changes, and open it again."
_COLOUR = re.compile(r"#[0-9a-f]{6}")
#: The head of e-mails without a colour, in templates/emails/_layout.html.
DEFAULT_COLOUR = "#115e59"
#: Between a text and its background (WCAG 2.2, success criterion 1.4.3).
LEAST_CONTRAST = 4.5
#: Whose owners are no senders of a provider: their rules (DMARC) have others' e-mails refused.
FREE_MAILBOXES = frozenset(
    {
        *("gmail.com", "googlemail.com", "outlook.com", "hotmail.com", "live.com", "msn.com", "yahoo.com"),
        *("yahoo.co.uk", "yahoo.de", "yahoo.fr", "icloud.com", "me.com", "aol.com", "gmx.de", "gmx.net"),
        *("gmx.at", "gmx.ch", "web.de", "t-online.de", "freenet.de", "orange.fr", "free.fr", "laposte.net"),
        *("libero.it", "seznam.cz", "wp.pl", "o2.pl", "mail.ru", "yandex.ru", "qq.com", "163.com"),
        *("proton.me", "protonmail.com", "zoho.com", "fastmail.com", "mail.com"),
    }
)
COLUMNS = (
    *("source", "from_email", "reply_to", "shop_name", "postal_address", "url"),
    *("default_locale", "time_zone", "colour", "logo_url", "copy_to"),
)


def account_fields() -> Iterator[tuple[str, str, str]]:
    """Yield the name of each field of an account's option, its provider and the option."""
    for provider, declared in declarations().items():
        for option in declared.account:
            yield f"{provider}_{option}", provider, option


class AccountFields(forms.Form):
    """One field for each option of a provider's account that a profile can set."""

    locals().update(
        {
            name: forms.CharField(
                label=f"{provider}: {option.replace('_', ' ')}", max_length=200, required=False
            )
            for name, provider, option in account_fields()
        }
    )


class ColourInput(forms.TextInput):
    """A text field and a colour picker, which `admin.js` shows and connects.

    A picker always has a value, but an empty text means the default colour. Only the text is posted.
    """

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        text = super().render(name, value, attrs, renderer)
        return format_html(
            '<span>{}<input type="color" class="hidden" aria-label="Pick a colour" data-picks-for="{}"'
            ' value="{}"></span>',
            text,
            (attrs or {}).get("id", ""),
            DEFAULT_COLOUR,
        )


class ProfileForm(forms.ModelForm[MailProfile], AccountFields):
    """The form of a profile.

    `seen_at` is the time of the stored profile that the form began as, in ISO 8601. Empty checks nothing.
    """

    seen_at = forms.CharField(required=False, widget=forms.HiddenInput)
    #: The shops for which the user may have a profile.
    shops: Binding = UNBOUND
    #: Whether a new logo is fetched. A preview fetches none, because it comes while a user types.
    is_logo_fetched = True
    #: Why the logo could not be fetched, which a saved profile is told with.
    logo_warning = ""

    class Meta:
        model = MailProfile
        fields = COLUMNS
        help_texts = {
            "source": "Whose orders have this profile: those of a shop, or own orders.",
            "from_email": "Such as Shop &lt;orders@example.com&gt;. Each provider must have verified it.",
            "reply_to": "Where customers' answers go. Empty for the sender.",
            "postal_address": "In the footer of each e-mail.",
            "url": "The shop's, in the footer of each e-mail.",
            "default_locale": "The language of orders whose shop gives none, such as de or de-AT.",
            "time_zone": "Of the dates in e-mails, such as Europe/Berlin. Empty: UTC.",
            "colour": f"The head of the e-mails, with white text, so a dark one. Empty: {DEFAULT_COLOUR}.",
            "logo_url": "A PNG, JPEG or GIF image for the head, in place of the name, by https and of at most"
            " 1 MB. It is shown 32 pixels high.",
            "copy_to": "The shop's address that gets a copy of each e-mail. Empty for none.",
        }
        labels = {
            "from_email": "From",
            "url": "Web address",
            "logo_url": "Web address of the logo",
            "copy_to": "Copies to",
        }
        widgets = {"source": forms.Select, "colour": ColourInput}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, provider, option in account_fields():
            self.initial[name] = self.instance.account.get(provider, {}).get(option, "")
        if not self.instance._state.adding:
            self.initial["seen_at"] = self.instance.updated_at.isoformat()
        if "source" in self.fields:  # not for a user who may only view
            # A profile keeps its source, also one that is no longer in ORDER_SOURCES.
            sources = dict.fromkeys(filter(None, (self.instance.source, *order_sources())))
            choices = [("", OWN_ORDERS), *((name, name) for name in sources)]
            self.fields["source"].widget.choices = [each for each in choices if self.shops.has(each[0])]

    def clean_seen_at(self) -> str:
        seen_at = str(self.cleaned_data["seen_at"])
        if seen_at and seen_at != self.initial.get("seen_at"):
            self.add_error(None, _CHANGED)
        return seen_at

    def clean_source(self) -> str:
        source = str(self.cleaned_data["source"])
        if not self.shops.has(source):
            raise forms.ValidationError(f"You are bound to {self.shops}.")
        try:
            refuse_reserved([source])
        except Reserved as error:
            raise forms.ValidationError(str(error)) from error
        if source and source != self.instance.source and source not in order_sources():
            sources = ", ".join(filter(self.shops.has, order_sources())) or "it has none of yours"
            raise forms.ValidationError(f"This is not one of ORDER_SOURCES ({sources}).")
        return source

    def clean_from_email(self) -> str:
        return _read_sender(self.cleaned_data["from_email"])

    def clean_reply_to(self) -> str:
        return _read_sender(self.cleaned_data["reply_to"])

    def clean_copy_to(self) -> str:
        address = str(self.cleaned_data["copy_to"])
        try:
            return read_address(address) if address else ""
        except NotAnAddress as error:
            raise forms.ValidationError(str(error)) from error

    def clean_shop_name(self) -> str:
        return _read_line(self.cleaned_data["shop_name"])

    def clean_postal_address(self) -> str:
        return _read_line(self.cleaned_data["postal_address"])

    def clean_url(self) -> str:
        return _read_url(self.cleaned_data["url"])

    def clean_logo_url(self) -> str:
        return _read_url(
            self.cleaned_data["logo_url"],
            schemes=["https"],
            wrong="Mail programs show a logo only by https. Write its address, such as"
            " https://shop.example.com/logo.png.",
        )

    def clean_default_locale(self) -> str:
        locale = str(self.cleaned_data["default_locale"])
        if locale and not is_locale(locale):
            raise forms.ValidationError("This is not a language tag, such as en or de-AT.")
        return locale

    def clean_time_zone(self) -> str:
        name = str(self.cleaned_data["time_zone"])
        if name and not is_zone_name(name):
            raise forms.ValidationError("This is not the IANA name of a time zone, such as Europe/Berlin.")
        return name

    def clean_colour(self) -> str:
        colour = str(self.cleaned_data["colour"]).lower()
        if colour and not _COLOUR.fullmatch(colour):
            raise forms.ValidationError("Write a colour as # and six hexadecimal digits, such as #115e59.")
        if colour and (contrast := contrast_with_white(colour)) < LEAST_CONTRAST:
            raise forms.ValidationError(
                f"The shop's name in white is hard to read on this colour: their contrast is {contrast:.1f},"
                f" and should be {LEAST_CONTRAST}. Choose a darker colour."
            )
        return colour

    def clean(self) -> dict[str, Any]:
        account: dict[str, dict[str, str]] = {}
        for name, provider, option in account_fields():
            if value := self.cleaned_data.get(name):
                account.setdefault(provider, {})[option] = value
        self.instance.account = account
        super().clean()  # has the name checked, which must be unique
        return self.cleaned_data

    def _post_clean(self) -> None:
        """Fetch a new logo after all other checks, so once for each save."""
        super()._post_clean()  # type: ignore[misc]  # Django's, without a type
        url = self.cleaned_data.get("logo_url")
        if not url or not self.is_logo_fetched or self.errors or url == self.initial.get("logo_url"):
            return
        try:
            check_logo(url)
        except BadLogo as error:
            self.add_error("logo_url", str(error))
        except LogoNotChecked as warning:
            self.logo_warning = str(warning)


def contrast_with_white(colour: str) -> float:
    """Return the contrast of a colour such as "#115e59" with white, from 1 to 21, as WCAG 2.2 defines it.

    >>> round(contrast_with_white("#000000")), round(contrast_with_white("#ffff00"), 2)
    (21, 1.07)
    """
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 1.05 / (luminance + 0.05)


def warn_of_sender(from_email: str) -> str:
    """Return what a person should know of a sender that a provider may not take, or ""."""
    domain = parseaddr(from_email)[1].rpartition("@")[2].lower()
    if domain in FREE_MAILBOXES:
        return (
            f"The sender is a mailbox at {domain}. Mail servers refuse what others send in its name."
            " Use an address of the shop's own domain."
        )
    if domain and not _may_exist(domain):
        return f"The sender's domain {domain} does not exist, or has no address. Check how it is written."
    return ""


def _may_exist(domain: str) -> bool:
    """Return False if the name service says within two seconds that there is no such domain.

    Those of RFC 2606 are for tests, and in no name service.
    """
    if domain.endswith((".test", ".example", ".invalid", ".localhost")):
        return True
    answers: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            socket.getaddrinfo(domain, None)
        except OSError as error:
            answers.put(error.errno != socket.EAI_NONAME)
        else:
            answers.put(True)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        return answers.get(timeout=2)
    except queue.Empty:
        return True


def as_document(profile: MailProfile) -> dict[str, Any]:
    """Return the values of a profile that are not empty, as `manage.py profiles` writes them."""
    values = {name: getattr(profile, name) for name in COLUMNS if name == "source" or getattr(profile, name)}
    return values | ({"account": profile.account} if profile.account else {})


def form_of(document: Mapping[str, Any], *, instance: MailProfile) -> ProfileForm:
    """Return the form of a document of `as_document`. Raise `ValueError` for a key that it does not have."""
    # A form leaves a column as it is that its data lack.
    values = dict.fromkeys(COLUMNS, "") | {
        name: value for name, value in document.items() if name != "account"
    }
    account = document.get("account") or {}
    if not isinstance(account, dict) or not all(isinstance(options, dict) for options in account.values()):
        raise ValueError("account must have the options of each provider by its name.")
    names = {(provider, option): name for name, provider, option in account_fields()}
    options_by_key = {
        (provider, option): value
        for provider, options in account.items()
        for option, value in options.items()
    }
    # The keys of a YAML file may also be numbers.
    wrong = [".".join(map(str, key)) for key in options_by_key.keys() - names]
    if unknown := [*wrong, *map(str, values.keys() - {*COLUMNS})]:
        raise ValueError(f"{min(unknown)} is unknown. Use {', '.join(COLUMNS)} and account.")
    values |= {names[key]: value for key, value in options_by_key.items()}
    return ProfileForm(values, instance=instance)


def _read_line(value: Any) -> str:
    text = str(value)
    if invisible := name_invisible(text):
        raise forms.ValidationError(invisible)
    if len(text.splitlines()) > 1:
        raise forms.ValidationError("Write it in one line.")
    return one_line(text)


def _read_sender(text: Any) -> str:
    """Return an address with or without a name, as a header has it."""
    if not text:
        return ""
    name, address = parseaddr(_read_line(text))
    try:
        address = read_address(address)
    except NotAnAddress as error:
        raise forms.ValidationError(
            f"This is not an e-mail address, such as Shop <orders@example.com>. {error}"
        ) from error
    return formatted_address(name=name, recipient_email=address)


def _read_url(
    value: Any,
    *,
    schemes: Collection[str] = ("http", "https"),
    wrong: str = "This is not a web address, such as https://shop.example.com.",
) -> str:
    text = _read_line(value)
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if text and not (
        parts.scheme in schemes and parts.hostname and "@" not in parts.netloc and " " not in text
    ):
        raise forms.ValidationError(wrong)
    return text
