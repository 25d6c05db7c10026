"""Whose refusal was it? The same permanent refusal of very different e-mails is the account's.

A server may refuse an account for today with the code of a permanent refusal, in words of its own. Without
this rule each e-mail would become a dead letter, and no other provider would be asked. A bad sentence spoils
the e-mails of one event, and a block list stops those to one domain.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import threading
from collections import defaultdict

from notifications.providers.causes import is_about_recipient
from notifications.states.claimed import Claimed
from notifications.states.outcomes import Outcome, Verdict

#: So many domains of recipients, and kinds of event, show that a refusal is not the e-mails'.
DOMAINS, EVENTS = 5, 2
#: Words that differ between two answers of one meaning: addresses, and ids, which have digits.
_VARYING = re.compile(r"\S*[@\d]\S*")


def same_words(error: str) -> str:
    """Return an error without the words that differ from e-mail to e-mail. Its code stays.

    >>> same_words("550 Limit of ann@example.com reached, id 7f3a-2.")
    '550 Limit of … reached, id …'
    """
    code, _, text = error.partition(" ")
    return f"{code} {_VARYING.sub('…', text)}"


@dataclasses.dataclass(slots=True)
class RefusalRun:
    """The refusals by one provider in the same words, since it last accepted an e-mail."""

    provider: str
    words: str
    #: The first refused e-mail's claim, by the database's clock.
    began_at: dt.datetime
    domains: set[str] = dataclasses.field(default_factory=set)
    events: set[str] = dataclasses.field(default_factory=set)

    def has_words(self, error: str) -> bool:
        return same_words(error) == self.words

    def is_about_us(self) -> bool:
        return len(self.domains) >= DOMAINS and len(self.events) >= EVENTS


class Refusals:
    """The providers' permanent refusals since their last acceptance, as this process has seen it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By provider, then by words.
        self._runs: defaultdict[str, dict[str, RefusalRun]] = defaultdict(dict)
        self._proved: list[RefusalRun] = []

    def judge(self, email: Claimed, outcome: Outcome) -> Outcome:
        """Note a provider's answer. Return it as `MISCONFIGURED` if it is a refusal of the account.

        Answers about a recipient or an e-mail's size never are. Only first attempts count: an e-mail that is
        refused again after another was accepted is refused for itself.
        """
        if outcome.verdict is Verdict.ACCEPTED:
            with self._lock:
                self._runs.pop(outcome.provider, None)
            return outcome
        if outcome.verdict is not Verdict.PERMANENT:
            return outcome
        if is_about_recipient(provider=outcome.provider, error=outcome.error):
            return outcome
        if email.is_untried:
            self._note(email, outcome)
        return self.judge_again(outcome)

    def _note(self, email: Claimed, outcome: Outcome) -> None:
        words = same_words(outcome.error)
        with self._lock:
            runs = self._runs[outcome.provider]
            run = runs.setdefault(words, RefusalRun(outcome.provider, words, email.claimed_at))
            if not run.is_about_us():
                run.domains.add(email.recipient_email.rpartition("@")[2].lower())
                run.events.add(email.event_type)
                if run.is_about_us():
                    self._proved.append(run)

    def judge_again(self, outcome: Outcome) -> Outcome:
        """Judge a refusal that came just before the account's were proved."""
        if outcome.verdict is not Verdict.PERMANENT:
            return outcome
        run = self._runs.get(outcome.provider, {}).get(same_words(outcome.error))
        if run is None or not run.is_about_us():
            return outcome
        return dataclasses.replace(outcome, verdict=Verdict.MISCONFIGURED)

    def proved(self) -> list[RefusalRun]:
        """Return the runs that turned out to be the account's and are not `ended`."""
        with self._lock:
            return [*self._proved]

    def ended(self, run: RefusalRun) -> None:
        """Forget a proved run, whose dead letters were taken back."""
        with self._lock:
            self._proved.remove(run)
