"""The actions of background jobs that render e-mails again, and export or erase a person."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from notifications.bulk_actions import add_action
from notifications.changes.manual_actions import Refusal
from notifications.log import act_on_email
from notifications.services import find_old_news
from notifications.states import transitions
from orders.models import Order
from orders.privacy import jobs
from orders.render_again import render_again
from retention.rows_of_person import describe_rest
from runtime.jobs.actions import BatchResult, PersonAction, group_refusals, register
from runtime.models import AuditRow


def _render_many(ids: Sequence[uuid.UUID]) -> BatchResult:
    """Render e-mails again that nobody looked at one by one: leave out old news."""
    old_news = find_old_news(ids=ids)
    return _render([id for id in ids if id not in old_news], old_news.values())


def _render(ids: Sequence[uuid.UUID], refused: Iterable[Refusal] = ()) -> BatchResult:
    done, refusals = render_again(ids=ids)
    acts = [
        act_on_email(change, kind=AuditRow.Kind.EMAIL, act=f"Rendered again as {copy_id} (was {change.was}).")
        for change, copy_id in done
    ]
    return BatchResult(acts, group_refusals((refusal.id, refusal.text) for refusal in (*refused, *refusals)))


RENDER_AGAIN = add_action(
    name="render_again",
    title="Render again",
    permission="notifications.resend_emailnotification",
    change=_render_many,
    change_one=_render,
    before=transitions.DISCARD.before,
    will_be="given up, and sent again with a new text",
    advice="Use this after a mistake in a template was corrected. A new e-mail is rendered from the order as"
    " it is now, and goes to the order's present address. The old e-mail is given up. If the provider's"
    " answer was lost, the customer may get both. An e-mail is left alone if it is being sent or held, if its"
    " recipient was erased, or if only its old text has what the customer must read, such as the reason of a"
    " cancellation. So is one that waits or was too old and that a later change of its order has overtaken,"
    " unless you render it alone.",
)

for action in (
    # The permission has the action's name.
    PersonAction(jobs.EXPORT, "Export a customer's data", Order, jobs.EXPORT, jobs.run_export),
    PersonAction(
        jobs.ERASE,
        "Erase a customer's data",
        Order,
        jobs.ERASE,
        jobs.run_erasure,
        rest=lambda person: describe_rest(person=person),
    ),
):
    register(action)
