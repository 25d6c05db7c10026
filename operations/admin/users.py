"""The page of a user, with the shops that the user may see. Only a superuser changes these."""

from __future__ import annotations

from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.contrib.auth.models import User
from django.http import HttpRequest

from notifications.connected import order_sources
from runtime.binding import Binding
from runtime.models import UserBinding
from runtime.names import ALL, OWN

_WORDS = {ALL: "all shops", OWN: "own orders"}


class BoundUserForm(UserChangeForm[User]):
    shops = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="The user sees the orders and e-mails of these shops alone, and all rights of the user hold"
        " for each of them. Providers, events, pauses, tokens, erasures and suppressions need all shops. A"
        " superuser sees all shops, whatever is ticked.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stored = stored_words(self.instance)
        self.initial["shops"] = stored
        if "shops" in self.fields:  # for a superuser
            # A user keeps a shop that does not exist any more, until somebody takes it away.
            names = dict.fromkeys([ALL, OWN, *order_sources(), *stored])
            field = cast(forms.MultipleChoiceField, self.fields["shops"])
            field.choices = [(name, _WORDS.get(name, name)) for name in names]

    def clean_shops(self) -> list[str]:
        words = list(self.cleaned_data["shops"])
        return [ALL] if ALL in words else sorted(words)


def stored_words(user: User) -> list[str]:
    row = UserBinding.objects.filter(user_id=user.pk).first()
    return list(row.sources) if row else []


admin.site.unregister(User)


@admin.register(User)
class BoundUserAdmin(UserAdmin[User]):
    form = BoundUserForm

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Show the shops of a user who exists to a superuser."""
        fieldsets = list(super().get_fieldsets(request, obj))
        if obj is not None and request.user.is_superuser:
            fieldsets.insert(2, ("Shops", {"fields": ["shops"]}))
        return fieldsets

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if "shops" not in form.cleaned_data or not request.user.is_superuser:
            return
        was, words = stored_words(obj), form.cleaned_data["shops"]
        if was != words:
            UserBinding.objects.update_or_create(user_id=obj.pk, defaults={"sources": words})
            now, before = Binding.of_words(words), Binding.of_words(was)
            self.log_change(request, obj, f"Bound to {now}. It was {before}.")
