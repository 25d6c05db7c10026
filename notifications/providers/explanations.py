"""The explanations of errors: what each means and what to do."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """`meaning` and `advice` are sentences."""

    title: str
    meaning: str
    advice: str


NO_SUCH_ADDRESS = Explanation(
    "The address does not exist",
    "The recipient's mail server or the provider says that there is no such address.",
    "Correct the address with the customer and send a copy to it. Sending to this one again cannot help.",
)
MALFORMED_ADDRESS = Explanation(
    "The address is malformed",
    "The provider does not accept it as an e-mail address. Usually it has a typo.",
    "Correct the address with the customer and send a copy to it. Sending to this one again cannot help.",
)
NO_ADDRESS = Explanation(
    "The order has no usable address",
    "Another system reported an order without an address, or with one that no provider accepts.",
    "Correct it in that system, whose next event sends the e-mail. Or send a copy to the right address, and"
    " correct the order's with it.",
)
INACTIVE = Explanation(
    "The provider suppresses the address",
    "The address bounced or complained before, so the provider refuses to send to it.",
    "If the customer wants the e-mail, remove the address from the provider's suppressions, then resend.",
)
MAILBOX_FULL = Explanation(
    "The mailbox is full",
    "The address exists, but its mailbox has no room.",
    "Resend in a day or two, or ask the customer for another address.",
)
BLOCKED = Explanation(
    "The recipient's server blocks our provider",
    "A block list or the sending servers' reputation causes this, not the e-mail.",
    "Ask the provider for another sending server or to be taken off the list, then resend.",
)
POLICY = Explanation(
    "Rejected by policy",
    "The recipient's server refuses the content or the sender, often because an SPF, DKIM or DMARC record is"
    " missing.",
    "Check the sending domain's DNS records at the provider, then resend.",
)
TOO_LARGE = Explanation(
    "The e-mail is too large",
    "It is larger than the provider or the recipient's server accepts.",
    "Make the template smaller. Stored e-mails keep their content, so give these up.",
)
NO_CREDIT = Explanation(
    "The provider's credit or quota is used up",
    "The account may not send until it is paid for or a new period begins.",
    "Raise the plan or wait for the new period, then resend.",
)
SENDER = Explanation(
    "The sender is not verified at the provider",
    "The provider does not allow our account to send from the shop's address or its domain. Only this shop's"
    " e-mails wait.",
    "Verify the sender or its domain at the provider. The e-mails then go out without a resend.",
)
ACCOUNT = Explanation(
    "The provider refuses our account",
    "The API key, login or region is wrong, or the account is suspended, paused or not approved yet.",
    "Check the key and the account at the provider, then resend.",
)
RATE = Explanation(
    "The provider's rate limit",
    "More e-mails were sent than the provider accepts in that time.",
    "Lower EMAIL_RATE_LIMIT if this happens often. Resending is safe, because the rate limit applies to it.",
)
IDEMPOTENCY = Explanation(
    "The same key was used for other content",
    "An earlier attempt of this e-mail had other content or another sender, and its key is still valid.",
    "If no webhook proves that the earlier attempt arrived, resend after 24 hours.",
)
LEASE = Explanation(
    "The worker was lost during the attempt",
    "Workers were killed or hung while they sent this e-mail, more often than its retries allow.",
    "Find the crashes in the workers' logs at these times. Then resend, unless the e-mail has arrived.",
)
NO_ANSWER = Explanation(
    "The provider's answer was lost",
    "The connection broke, or a gateway answered, after the e-mail was handed over. So the provider may have"
    " it.",
    "Check the provider's log, or wait for its webhook. If the e-mail did not arrive, resend.",
)
NO_CONNECTION = Explanation(
    "The provider could not be reached",
    "The connection failed because of DNS, the network, a firewall, TLS or a wrong address of the API.",
    "Check the network and the provider's status page, then resend.",
)
PROVIDER_DOWN = Explanation(
    "An error at the provider",
    "The provider answered that it failed.",
    "Check the provider's status page. Resend when the provider works again.",
)
MAILBOX_UNAVAILABLE = Explanation(
    "The mailbox is unavailable",
    "The recipient's server accepts no e-mail for it now. It may be disabled, moved or greylisted.",
    "Resend later. If that fails, too, ask the customer for another address.",
)
CONTENT = Explanation(
    "The message is invalid",
    "The provider cannot read the message, because a template, a header or a field is wrong.",
    "Fix the template or the setting that the example names. Stored e-mails keep their content.",
)
RESTORED = Explanation(
    "Held after a restore of the database",
    "It was due or being sent when the lost time began, and no log shows whether it was sent.",
    "Search for them in the provider's list. Mark those that it has as sent, and resend the others.",
)
TOO_OLD = Explanation(
    "Too old to be sent without a decision",
    "No provider took it in the time that EMAIL_MAX_AGE_HOURS gives, so its news may be wrong by now.",
    "Resend them if customers should still read them. Those that a later change has overtaken are left out.",
)
UNKNOWN = Explanation(
    "Not known yet",
    "The table of causes has no entry for this error.",
    "Read the example. Resend one e-mail first. When it is sent, resend the others.",
)
