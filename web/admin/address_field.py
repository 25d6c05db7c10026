"""The field of a form that takes an e-mail address."""

from __future__ import annotations

from typing import Any

from django import forms

from runtime.addresses import LONGEST, NotAnAddress, read_address


class AddressField(forms.CharField):
    """An address that the API accepts, too. Its value is the address as it is stored."""

    widget = forms.EmailInput

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=LONGEST, **options)

    def clean(self, value: Any) -> str:
        try:
            return read_address(str(super().clean(value)))
        except NotAnAddress as error:
            raise forms.ValidationError(str(error)) from error
