"""The details of an order in its e-mails: addresses, how it is delivered and paid, a note, and a link.

All but the link are customers' texts. An e-mail shows each as one line in which nothing is a link.
"""

from __future__ import annotations

import re

from runtime.texts import one_line

LONGEST_LINE = 100
MOST_LINES = 8  # of an address
LONGEST_NOTE = 500
#: The end of a card's or an account's number that may be shown.
_SHOWN = 4
#: A card has 12 to 19 digits, and an account may have more. They may stand in groups.
_NUMBER = re.compile(r"\d(?:[^\w]{0,2}\d){11,}")


def has_card_number(text: str) -> bool:
    """Return whether a text has the digits of a card or an account.

    >>> has_card_number("Visa 4242 4242 4242 4242"), has_card_number("Visa 4242")
    (True, False)
    """
    return _NUMBER.search(text) is not None


def hide_card_number(text: str) -> str:
    """Return a text with only the last digits of cards and accounts.

    >>> hide_card_number("Visa 4242-4242-4242-4242, paid")
    'Visa …4242, paid'
    """
    return _NUMBER.sub(lambda hit: f"…{''.join(filter(str.isdigit, hit[0]))[-_SHOWN:]}", text)


def hide_code(label: str) -> str:
    """Return the end of a gift card's code: whoever knows the code has the money.

    >>> hide_code("GIFT-2ZX9-77QA"), hide_code("…77QA")
    ('…77QA', '…77QA')
    """
    code = one_line(label)
    return f"…{code[-_SHOWN:]}" if len(code) > _SHOWN else code
