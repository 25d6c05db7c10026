"""Try a provider: send one real e-mail, and follow it until its webhook arrives.

The job's id is the e-mail's id, and the job keeps the steps. No row of `email_notifications` is written. The
circuit breakers, the rate limit and the suppressions do not apply.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Iterable, Mapping
from email.utils import parseaddr

from django.conf import settings
from django.contrib.auth.models import AbstractUser

from notifications.content.rendering import render_email
from notifications.content.template_files import event_types
from notifications.models import EmailNotification
from notifications.providers.causes import blame, explain
from notifications.providers.registry import Declaration, declarations
from notifications.providers.sending import PROVIDERS
from notifications.providers.webhook import Evidence
from notifications.states.outcomes import Outcome, Verdict
from runtime.addresses import read_address
from runtime.jobs.actions import JobRefused, Report
from runtime.jobs.start import start_for_person
from runtime.models import BulkJob, Heartbeat
from runtime.personal_data import ERASED_ADDRESS, hide_addresses

#: The name of the action. The app of the orders registers it, which has the sample of an order.
TRY = "notifications.try_provider"
#: Begins the kind of a step that is a provider's event.
EVENT = "event:"
#: How long to wait for the webhook.
WAIT_SECONDS = 60.0
#: How often to look for it. Each look also shows other workers that this one is alive.
LOOK_SECONDS = 1.0
#: A web process writes a heartbeat of posts at most this often, and an earlier one may stand for a later
#: post.
BEAT_SECONDS = 5.0
#: After so long without a worker, nobody waits for the e-mail any more.
TOO_LATE = dt.timedelta(minutes=10)
#: The events after which no further one is awaited, and whether the e-mail arrived.
_LAST = {"delivered": True, "bounced": False, "rejected": False, "complained": False}
_UNKNOWN = "Unknown {what} {name}. Use {names}."


def default_event() -> str:
    """Return the event whose e-mail is sent unless another is named: the first of NOTIFY_ON."""
    return next((name for name in settings.NOTIFY_ON if name in event_types()), min(event_types()))


def start_trial(*, provider: str, to: str, event: str = "", user: AbstractUser | None = None) -> BulkJob:
    """Start a job that tries a provider. Raise ValueError, with what would be right, for a wrong argument."""
    event = event or default_event()
    for what, name, names in (("provider", provider, declarations()), ("event", event, event_types())):
        if name not in names:
            raise ValueError(_UNKNOWN.format(what=what, name=name, names=", ".join(names)))
    address = read_address(to)
    if address.lower() == ERASED_ADDRESS:
        raise ValueError("Use an address that exists.")
    return start_for_person(action=TRY, address=address, user=user, provider=provider, event=event)


def run_trial(*, job: BulkJob, report: Report, sample: Mapping[str, object]) -> None:
    """Send the job's e-mail with an order's `sample`, unless an earlier try has, and wait for its webhook.

    Raise `JobRefused`, with the setting to correct, if the e-mail or its webhook does not arrive.
    """
    trial = _Trial(job, report)
    began_at = next((step["at"] for step in job.steps or () if step["kind"] == "sending"), None)
    if began_at is not None:
        trial.note("resumed", "The process that sent the e-mail was killed, so its answer is unknown.")
        unclear = f"Check the log of {trial.declared.name}."
        trial.wait(sent_at=dt.datetime.fromisoformat(began_at), unclear=unclear)
        return
    trial.check_settings()
    outcome = trial.send(sample)
    unclear = ""
    if outcome.verdict is Verdict.AMBIGUOUS:
        unclear = trial.why_refused(outcome)
        trial.note("unclear", f"{trial.declared.name} may have the e-mail. {outcome.error}")
    elif outcome.verdict is not Verdict.ACCEPTED:
        raise JobRefused(trial.why_refused(outcome))
    elif outcome.provider_message_id:
        said = f"{trial.declared.name} accepted the e-mail as {outcome.provider_message_id}."
        trial.note("accepted", said, hide=False)
    else:
        unclear = f"Check {trial.declared.url_setting}: a server answered, but without an id for the e-mail."
        trial.note("unclear", unclear)
    trial.wait(sent_at=trial.sent_at, unclear=unclear)


def record_events(*, provider: str, facts: Iterable[Evidence]) -> int:
    """Add the events to the trials whose e-mails they are about. Return the number of these events."""
    facts = [fact for fact in facts if fact.id is not None]
    jobs = BulkJob.objects.filter(action=TRY, filter__provider=provider, id__in={fact.id for fact in facts})
    ids = set(jobs.values_list("id", flat=True))
    own = [fact for fact in facts if fact.id in ids]
    for fact in own:
        assert fact.id is not None
        BulkJob.objects.add_step(
            id=fact.id, kind=f"{EVENT}{fact.kind}", text=f"The webhook says: {fact.kind}."
        )
    return len(own)


def refused_beat(*, provider: str, problem: str) -> str:
    """Return the name of the heartbeat of a provider's posts that the webhook refused."""
    return f"refused:{problem}:{provider}"


class _Trial:
    """One run of a job that tries a provider."""

    def __init__(self, job: BulkJob, report: Report) -> None:
        self.declared: Declaration = declarations()[job.filter["provider"]]
        self.sent_at = dt.datetime.now(dt.UTC)
        self._job = job
        self._report = report

    def note(self, kind: str, text: str, *, hide: bool = True) -> None:
        """Add a step to the job."""
        BulkJob.objects.add_step(id=self._job.id, kind=kind, text=_without_addresses(text) if hide else text)
        self._report(kind)

    def check_settings(self) -> None:
        """Raise `JobRefused` if a missing setting would keep the e-mail or its events from arriving."""
        name = self.declared.name
        if self._job.created_at < dt.datetime.now(dt.UTC) - TOO_LATE:
            raise JobRefused("No worker was free for 10 minutes, so nothing was sent. Start another trial.")
        if name not in settings.EMAIL_PROVIDERS:
            raise JobRefused(
                f"Add {name} to EMAIL_PROVIDERS, which is {','.join(settings.EMAIL_PROVIDERS)}. Without it no"
                f" e-mail goes to {name}, and /webhooks/{name} takes no events. Nothing was sent."
            )
        key = next(
            (setting for setting in self.declared.settings if setting.name == self.declared.api_key), None
        )
        if key and not (settings.ANYMAIL.get(key.anymail) if key.anymail else getattr(settings, key.name)):
            raise JobRefused(f"Set {key.name}, which is empty. Nothing was sent.")

    def send(self, sample: Mapping[str, object]) -> Outcome:
        """Send the e-mail. This step is in a job that is run again, and such a job sends none."""
        event = self._job.filter["event"]
        email = render_email(event_type=event, locale="en", context=sample)
        sender = parseaddr(settings.DEFAULT_FROM_EMAIL)[1]
        self.note("sending", f"Send the e-mail of {event} from {sender} through {self.declared.name}.")
        provider = PROVIDERS[self.declared.name]
        # No step is reported during the send. Another process could take a slow one for killed.
        BulkJob.objects.hold(id=self._job.id, seconds=WAIT_SECONDS)
        self.sent_at = dt.datetime.now(dt.UTC)
        try:
            return provider.send(
                EmailNotification(
                    id=self._job.id,
                    order_id=uuid.UUID(int=0),
                    event_type=event,
                    recipient_email=self._job.address,
                    to_name="",
                    subject=f"[Trial] {email.subject}"[:255],
                    body=email.body_html,
                    body_text=email.body_text,
                )
            )
        finally:
            provider.close()  # the next trial reads the settings again

    def why_refused(self, outcome: Outcome) -> str:
        """Return the setting to check, the error, and its explanation."""
        name, error = self.declared.name, outcome.error
        meaning = explain(provider=name, error=error).meaning
        return _without_addresses(
            f"Check {blame(provider=name, error=error)}. Sending failed with: {error.rstrip('. ')}. {meaning}"
        )

    def wait(self, *, sent_at: dt.datetime, unclear: str) -> None:
        """Wait for an event. Raise `JobRefused` if none arrives, or if the e-mail bounced.

        `unclear` says what to check if the provider's answer did not show whether it has the e-mail.
        """
        name, key = self.declared.name, self.declared.webhook_key
        if not self.declared.webhook:
            if unclear:
                raise JobRefused(unclear)
            self.note("unproved", f"{name} posts no events. Look for the e-mail in its mailbox.")
            return
        if not (getattr(settings, key) or settings.DEBUG or settings.WEBHOOKS_UNSIGNED):
            raise JobRefused(
                f"Set {key}. The e-mail was sent, but /webhooks/{name} refuses all events without the key."
            )
        self.note("waiting", f"Wait up to {WAIT_SECONDS:.0f} s for an event at /webhooks/{name}.")
        refused = ""
        while True:
            waited_seconds = (dt.datetime.now(dt.UTC) - sent_at).total_seconds()
            kinds = self._arrived()
            if last := next((kind for kind in kinds if kind in _LAST), ""):
                if not _LAST[last]:
                    raise JobRefused(
                        f"The webhook works, but says that the e-mail was {last}. Check the address, and"
                        " SPF, DKIM and DMARC of the sender's domain."
                    )
                return
            if not refused and (refused := self._why_posts_are_refused(sent_at)):
                self.note("refused", refused)
            if waited_seconds >= WAIT_SECONDS:
                break
            time.sleep(LOOK_SECONDS)
            self._report("looked")
        if not kinds:
            raise JobRefused(unclear or refused or self._why_nothing_came(sent_at))
        self.note("unproved", f"The webhook works. No delivery was reported within {WAIT_SECONDS:.0f} s.")

    def _arrived(self) -> list[str]:
        """Return the kinds of events that have arrived."""
        steps = BulkJob.objects.values_list("steps", flat=True).get(id=self._job.id) or ()
        return [step["kind"].removeprefix(EVENT) for step in steps if step["kind"].startswith(EVENT)]

    def _why_posts_are_refused(self, sent_at: dt.datetime) -> str:
        """Return why the webhook has refused posts since the e-mail was sent, or an empty text."""
        name, key = self.declared.name, self.declared.webhook_key
        for problem, advice in (
            ("unsigned", f"Check {key}: it must be the key of this webhook at {name}."),
            ("malformed", f"Check that {name} posts its own events to /webhooks/{name}."),
            ("unverifiable", "Let the web process fetch the certificate that signs the posts."),
        ):
            age = _age_since(refused_beat(provider=name, problem=problem), sent_at)
            if age is not None:
                return f"{advice} /webhooks/{name} refused a post as {problem} {age:.0f} s ago."
        return ""

    def _why_nothing_came(self, sent_at: dt.datetime) -> str:
        """Return why no event about the e-mail came, by whether any other event did."""
        name = self.declared.name
        if _age_since(f"webhook:{name}", sent_at) is not None:
            return (
                f"Check the events of the webhook at {name}. It posts events, but none about this e-mail came"
                f" within {WAIT_SECONDS:.0f} s. docs/guides/providers.md lists the events to choose."
            )
        return (
            f"Check the webhook's URL at {name}: no post came within {WAIT_SECONDS:.0f} s. It must be"
            f" https://<this server>/webhooks/{name}. {name} must reach it, and ALLOWED_HOSTS must have the"
            " server's name."
        )


def _age_since(beat: str, sent_at: dt.datetime) -> float | None:
    """Return the seconds since a heartbeat, or None if it is older than the e-mail."""
    age = Heartbeat.read_age(name=beat)
    # Read the clock after the age: a slow read must make no heartbeat look older than the e-mail.
    waited_seconds = (dt.datetime.now(dt.UTC) - sent_at).total_seconds()
    return age if age is not None and age <= waited_seconds + BEAT_SECONDS else None


def _without_addresses(text: str) -> str:
    """Hide every address in a text but the sender's."""
    sender = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].lower()
    return hide_addresses(text, but=sender.__eq__)
