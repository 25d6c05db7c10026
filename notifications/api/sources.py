"""Hide a part of a source's e-mails from a token that is bound to the source.

A copy to an address that is not its order's was sent there by an operator, perhaps to a colleague. A bound
token sees the copy, but no address in it.
"""

from __future__ import annotations

from django.db.models import F, Q

from notifications.models import EmailNotificationQuerySet
from web.models import ApiToken

#: A copy to an address that is not its order's.
_ELSEWHERE = Q(resend_of__isnull=False) & ~Q(recipient_email__iexact=F("order__email"))


def visible(
    emails: EmailNotificationQuerySet, token: ApiToken, *, recipient_email: str = ""
) -> EmailNotificationQuerySet:
    """Filter the e-mails that a token can see, and by the recipient if one is given.

    A bound token's rows have `is_elsewhere`, by which the serializer hides addresses.
    """
    if recipient_email:
        emails = emails.filter(recipient_email__iexact=recipient_email)
    if token.binding.is_unbound:
        return emails
    if recipient_email:  # what is hidden is not found, either
        emails = emails.exclude(_ELSEWHERE)
    return token.binding.only(emails).annotate(is_elsewhere=_ELSEWHERE)
