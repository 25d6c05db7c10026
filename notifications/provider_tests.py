"""Test a provider: send one real e-mail at once, and say what its answer and its webhook show.

The id of the row is the e-mail's id. No row of `email_notifications` is written. The circuit breakers, the
rate limit, the queue and the suppressions do not apply.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Set
from email.utils import parseaddr
from typing import NamedTuple

from django.conf import settings

from notifications.content import sample_orders
from notifications.content.rendering import render_email
from notifications.content.template_files import event_types
from notifications.models import EmailNotification, ProviderTest
from notifications.providers.causes import blame, explain
from notifications.providers.registry import Declaration, declarations
from notifications.providers.sending import PROVIDERS
from notifications.providers.webhook import Evidence
from notifications.states.outcomes import MESSAGE_ID_LIMIT, Outcome, Verdict
from runtime.addresses import read_address
from runtime.database.clock import read_database_time
from runtime.models import AuditRow, Heartbeat
from runtime.personal_data import ERASED_ADDRESS, address_hash, hide_addresses
from runtime.texts import make_storable

#: How long to wait for the webhook.
WAIT_SECONDS = 60.0
#: A web process writes a heartbeat of posts at most this often, and an earlier one may stand for a later
#: post.
BEAT_SECONDS = 5.0
#: The events after which no further one is awaited, and whether the e-mail arrived.
_LAST = {"delivered": True, "bounced": False, "rejected": False, "complained": False}
#: The problems for which the webhook refuses a post, and what to do.
_PROBLEMS = {
    "unsigned": "Check {key}: it must be the key of this webhook at {name}.",
    "malformed": "Check that {name} posts its own events to /webhooks/{name}.",
    "unverifiable": "Let the web process fetch the certificate that signs the posts.",
}
_UNKNOWN = "Unknown {what} {name}. Use {names}."


class ProviderTestResult(NamedTuple):
    """The result of a test: that all works, or what to check. It may change unless it is final."""

    text: str
    works: bool = False
    is_final: bool = True


def default_event() -> str:
    """Return the event whose e-mail is sent unless another is named: the first of NOTIFY_ON."""
    return next((name for name in settings.NOTIFY_ON if name in event_types()), min(event_types()))


def refused_beat(*, provider: str, problem: str) -> str:
    """Return the name of the heartbeat of a provider's posts that the webhook refused."""
    return f"refused:{problem}:{provider}"


def send_test(*, provider: str, to: str, event: str = "") -> ProviderTest:
    """Send an e-mail with a sample order, and store the answer. Raise ValueError for a wrong argument."""
    event = event or default_event()
    for what, name, names in (("provider", provider, declarations()), ("event", event, event_types())):
        if name not in names:
            raise ValueError(_UNKNOWN.format(what=what, name=name, names=", ".join(names)))
    address = read_address(to)
    if address.lower() == ERASED_ADDRESS:
        raise ValueError("Use an address that exists.")
    declared = declarations()[provider]
    email = render_email(event_type=event, locale="en", context=sample_orders.order_for(event))
    # The webhook may find the row before the provider has answered.
    test = ProviderTest.objects.create(provider=provider, address_hash=address_hash(address))
    test.answer = check_settings(declared)
    if test.answer:
        test.accepted = False
    else:
        row = EmailNotification(
            id=test.id,
            order_id=uuid.UUID(int=0),
            event_type=event,
            recipient_email=address,
            to_name="",
            subject=f"[Test] {email.subject}"[:255],
            body=email.body_html,
            body_text=email.body_text,
        )
        try:
            outcome = PROVIDERS[provider].send(row)
        finally:
            PROVIDERS[provider].close()  # the next test reads the settings again
        test.accepted, test.answer = _read_answer(declared, outcome, event)
    test.save(update_fields=["accepted", "answer"])
    return test


def act_on_test(test: ProviderTest, *, event: str) -> AuditRow:
    """Return the audit row of a test."""
    return AuditRow(
        kind=AuditRow.Kind.TEST_EMAIL,
        act=f"Sent a test. event={event} to=hash:{test.address_hash}",
        subject_type=test._meta.label_lower,
        subject_id=str(test.id),
        subject=f"provider {test.provider}",
    )


def record_events(*, provider: str, facts: Iterable[Evidence]) -> int:
    """Write what the events say of the tests that they are about. Return the number of these events."""
    facts = list(facts)
    tests = ProviderTest.objects.filter(provider=provider, id__in={fact.id for fact in facts if fact.id})
    ids = set(tests.values_list("id", flat=True))
    own = [(fact.id, fact.kind) for fact in facts if fact.id in ids]
    for id, kind in dict.fromkeys(own):
        # An event that came late must not hide the last one.
        undecided = tests if kind in _LAST else tests.exclude(reported__in=_LAST)
        undecided.filter(id=id).update(reported=kind)
    return len(own)


def check_settings(declared: Declaration) -> str:
    """Return which missing setting would keep the e-mail or its events from arriving, or an empty text."""
    name = declared.name
    if name not in settings.EMAIL_PROVIDERS:
        return (
            f"Add {name} to EMAIL_PROVIDERS, which is {','.join(settings.EMAIL_PROVIDERS)}. Without it no"
            f" e-mail goes to {name}, and /webhooks/{name} takes no events. Nothing was sent."
        )
    key = next((setting for setting in declared.settings if setting.name == declared.api_key), None)
    if key and not (settings.ANYMAIL.get(key.anymail) if key.anymail else getattr(settings, key.name)):
        return f"Set {key.name}, which is empty. Nothing was sent."
    return ""


def find_result(test: ProviderTest) -> ProviderTestResult:
    """Say what is known of a test, and once nothing more is awaited, what to check."""
    declared = declarations()[test.provider]
    name, key = declared.name, declared.webhook_key
    if test.accepted is False:
        return ProviderTestResult(test.answer)
    if test.reported in _LAST and not _LAST[test.reported]:
        return ProviderTestResult(
            f"The webhook works, but says that the e-mail was {test.reported}. Check the address, and SPF,"
            " DKIM and DMARC of the sender's domain."
        )
    if test.reported in _LAST:
        said = f"The webhook says: {test.reported}. The settings of {name} work."
        return ProviderTestResult(said, works=True)
    if test.accepted and not declared.webhook:
        said = f"{name} posts no events. Look for the e-mail in its mailbox. The settings of {name} work."
        return ProviderTestResult(said, works=True)
    if test.accepted and not (getattr(settings, key) or settings.DEBUG or settings.WEBHOOKS_UNSIGNED):
        said = f"Set {key}. The e-mail was sent, but /webhooks/{name} refuses all events without the key."
        return ProviderTestResult(said)
    posts = _posts_since(declared, test.sent_at)
    refused = _why_posts_are_refused(declared, posts)
    is_early = read_database_time() < test.sent_at + dt.timedelta(seconds=WAIT_SECONDS)
    if is_early and declared.webhook:
        said = f"Waiting up to {WAIT_SECONDS:.0f} s for an event at /webhooks/{name}. {refused}".rstrip()
        return ProviderTestResult(said, is_final=False)
    if test.reported:
        said = f"The webhook works. No delivery was reported within {WAIT_SECONDS:.0f} s."
        return ProviderTestResult(f"{said} The settings of {name} work.", works=True)
    if not test.accepted:  # and nothing has shown yet that the provider has it
        return ProviderTestResult(test.answer)
    return ProviderTestResult(refused or _why_nothing_came(declared, posts))


def _read_answer(declared: Declaration, outcome: Outcome, event: str) -> tuple[bool | None, str]:
    """Return whether the provider has the e-mail, or None if that is unclear, and its answer in words."""
    name, sender = declared.name, parseaddr(settings.DEFAULT_FROM_EMAIL)[1]
    if outcome.verdict is Verdict.ACCEPTED and outcome.provider_message_id:
        id = make_storable(outcome.provider_message_id)[:MESSAGE_ID_LIMIT]
        return True, f"{name} accepted the e-mail of {event} from {sender} as {id}."
    if outcome.verdict is Verdict.ACCEPTED:
        return None, f"Check {declared.url_setting}: a server answered, but without an id for the e-mail."
    if outcome.verdict is Verdict.AMBIGUOUS:
        return None, f"{name} may have the e-mail. {why_refused(declared, outcome, sender)}"
    return False, why_refused(declared, outcome, sender)


def why_refused(declared: Declaration, outcome: Outcome, sender: str) -> str:
    """Return the setting to check, the error, and its explanation, without any address but the sender's."""
    name, error = declared.name, outcome.error
    meaning = explain(provider=name, error=error).meaning
    setting = blame(provider=name, error=error)
    said = f"Check {setting}. Sending from {sender} failed with: {error.rstrip('. ')}. {meaning}"
    return hide_addresses(said, but=sender.lower().__eq__)


def _posts_since(declared: Declaration, sent_at: dt.datetime) -> set[str]:
    """Return the heartbeats of the provider's posts since the e-mail was sent."""
    name = declared.name
    names = [f"webhook:{name}", *(refused_beat(provider=name, problem=problem) for problem in _PROBLEMS)]
    first = sent_at - dt.timedelta(seconds=BEAT_SECONDS)
    return set(Heartbeat.objects.filter(name__in=names, beat_at__gte=first).values_list("name", flat=True))


def _why_posts_are_refused(declared: Declaration, posts: Set[str]) -> str:
    """Return why the webhook has refused posts since the e-mail was sent, or an empty text."""
    name = declared.name
    for problem, advice in _PROBLEMS.items():
        if refused_beat(provider=name, problem=problem) in posts:
            advice = advice.format(name=name, key=declared.webhook_key)
            return f"{advice} /webhooks/{name} has refused a post as {problem} since the e-mail was sent."
    return ""


def _why_nothing_came(declared: Declaration, posts: Set[str]) -> str:
    """Return why no event about the e-mail came, by whether any other event did."""
    name = declared.name
    if f"webhook:{name}" in posts:
        return (
            f"Check the events of the webhook at {name}. It posts events, but none about this e-mail has"
            " come. docs/guides/providers.md lists the events to choose."
        )
    return (
        f"Check the webhook's URL at {name}: no post has come since the e-mail was sent. It must be"
        f" https://<this server>/webhooks/{name}. {name} must reach it, and ALLOWED_HOSTS must have the"
        " server's name."
    )
