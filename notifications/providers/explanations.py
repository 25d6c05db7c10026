"""What errors mean in words, and what to do about them: the texts that declarations and `causes` name."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """`meaning` and `advice` are sentences; `helps`: sending again can help before anything is mended."""

    title: str
    meaning: str
    advice: str
    helps: bool = False


NO_SUCH_ADDRESS = Explanation(
    "The address does not exist",
    "The recipient's mail server or the provider says that there is no such address.",
    "Correct the address with the customer and send a copy to it. Sending to this one again cannot help.",
)
MALFORMED_ADDRESS = Explanation(
    "The address is malformed",
    "The provider does not read it as an e-mail address; usually it has a typo.",
    "Correct the address with the customer and send a copy to it. Sending to this one again cannot help.",
)
INACTIVE = Explanation(
    "The provider suppresses the address",
    "The address bounced or complained before, and the provider refuses to write to it.",
    "If the customer wants the e-mail, remove the address from the provider's suppressions, then resend.",
)
MAILBOX_FULL = Explanation(
    "The mailbox is full",
    "The address exists, but its mailbox has no room.",
    "Resend in a day or two, or ask the customer for another address.",
    helps=True,
)
BLOCKED = Explanation(
    "The recipient's server blocks our provider",
    "A block list or the reputation of the sending servers is the reason, not this e-mail.",
    "Ask the provider for another sending server or to be taken off the list, then resend.",
)
POLICY = Explanation(
    "Rejected by policy",
    "The recipient's server refuses content or sender, often for a missing SPF, DKIM or DMARC record.",
    "Check the sending domain's DNS records at the provider, then resend.",
)
TOO_LARGE = Explanation(
    "The e-mail is too large",
    "It is larger than the provider or the recipient's server takes.",
    "Make the template smaller. Stored e-mails keep their content, so give these up.",
)
NO_CREDIT = Explanation(
    "The provider's credit or quota is used up",
    "The account may send no more until it is paid for, or until its period ends.",
    "Raise the plan or wait for the new period, then resend.",
)
SENDER = Explanation(
    "The sender is not verified at the provider",
    "The provider does not allow our account to send from DEFAULT_FROM_EMAIL or its domain.",
    "Verify the sender or its domain at the provider, then resend.",
)
ACCOUNT = Explanation(
    "The provider refuses our account",
    "The API key, login or region is wrong, or the account is suspended, paused or not approved yet.",
    "Check the key and the account at the provider, then resend.",
)
RATE = Explanation(
    "The provider's rate limit",
    "More e-mails were sent than the provider takes in that time.",
    "Lower EMAIL_RATE_LIMIT if this happens often. Resending is safe: it keeps to the rate.",
    helps=True,
)
IDEMPOTENCY = Explanation(
    "The same key was used for another content",
    "An earlier attempt of this e-mail had another sender or content, and the provider still keeps its key.",
    "If no webhook proves that the earlier attempt arrived, resend after 24 hours.",
)
LEASE = Explanation(
    "The worker was lost during the attempt",
    "A worker was killed or hung while it sent this e-mail, more often than retries allow.",
    "Look for crashes in the worker's log at these times. The e-mail may have arrived; then resend.",
)
NO_ANSWER = Explanation(
    "The provider's answer was lost",
    "The connection broke, or a gateway answered instead, after the e-mail was handed over, so the provider"
    " may have it.",
    "Look at the provider's log or wait for its webhook. If it did not arrive, resend.",
    helps=True,
)
NO_CONNECTION = Explanation(
    "The provider could not be reached",
    "No connection came about: DNS, network, firewall, TLS or a wrong address of the API.",
    "Check the network and the provider's status page, then resend.",
    helps=True,
)
PROVIDER_DOWN = Explanation(
    "An error at the provider",
    "The provider answered that something failed on its side.",
    "Look at the provider's status page. Once it works, resend.",
    helps=True,
)
MAILBOX_UNAVAILABLE = Explanation(
    "The mailbox is unavailable",
    "The recipient's server does not take e-mails for this address now: it is disabled, moved or greylisted.",
    "Resend later. If it stays, ask the customer for another address.",
    helps=True,
)
CONTENT = Explanation(
    "The message is invalid",
    "The provider cannot read what we built: a template, a header or a field is wrong.",
    "Mend the template or the setting that the example names. Stored e-mails keep their content.",
)
RESTORED = Explanation(
    "Held after a restore of the database",
    "It was due or in flight when the lost time began, and no log shows whether it was sent in it.",
    "Look for some of them in the provider's own list. Mark those as sent that are there; resend the others.",
)
UNKNOWN = Explanation(
    "Not known yet",
    "No entry of the table of causes matches this error.",
    "Read the example. Resend one e-mail first, and the others once it is sent.",
)
