"""The admin of domain events and inbound dead letters, and their part of the search box."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Case, Model, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString

from events.bulk_actions import order_of
from events.consuming.refusals import MOST
from events.models import DomainEvent, InboundDeadLetter, RefusedEvent
from events.models.events import DomainEventQuerySet
from events.models.states import DEAD, PUBLISHED, STUCK, UNPUBLISHED
from events.publishing.resend import resend_events
from events.transports import BrokerAway
from runtime.binding import Binding
from runtime.database import periods
from runtime.database.ids import parse_uuid
from runtime.models import AuditRow
from web.admin.base import AgeFilter, ChosenFilter, TriageAdmin, pill, show_time
from web.admin.jobs import start_for_list
from web.admin.menu import MenuItem
from web.admin.period import PeriodFilter
from web.admin.rights import require_unbound, shops_of
from web.admin.search import SHOWN, Hit, Term, searches
from web.admin.tabs import StateRows, TabFilter

MOST_AT_ONCE = 5000
Verb = Callable[..., list[uuid.UUID]]


class EventStateFilter(TabFilter):
    title, parameter_name = "state", "state"
    #: The most urgent state first. Each one but the last has an index.
    states: dict[str, Callable[[DomainEventQuerySet], DomainEventQuerySet]] = {
        "dead-lettered": DomainEventQuerySet.dead,
        "failing": DomainEventQuerySet.failing,
        "not published": DomainEventQuerySet.unpublished,
        "published": DomainEventQuerySet.published,
    }

    def choices_of(self) -> Iterable[str]:
        return self.states

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        state = self.states.get(self.value() or "")
        return state(queryset) if state and isinstance(queryset, DomainEventQuerySet) else queryset

    def counted(self, rows: QuerySet[Any], shops: Binding) -> Iterable[StateRows]:
        """Return the states by the two indexes of events that are not published, and all events."""
        if shops.is_unbound:
            dead = Case(When(DEAD.rows, then=Value("dead-lettered")), default=Value("failing"))
            yield StateRows(["dead-lettered", "failing"], rows.filter(STUCK.rows).values_list(dead))
            waiting = rows.filter(UNPUBLISHED.rows).values_list(Value("not published"))
            yield StateRows(["not published"], waiting)
            published = Case(When(PUBLISHED.rows, then=Value("published")), default=Value(""))
            yield StateRows(["published"], rows.values_list(published))


@admin.register(DomainEvent)
class DomainEventAdmin(TriageAdmin[DomainEvent]):
    """Domain events, newest first. Operators republish or discard the dead ones."""

    audit_kind = AuditRow.Kind.EVENT
    is_named_in_audit = False

    menu = MenuItem(55, "Events")
    empty_text = (
        "Each change of an order writes an event. Published events leave the list after EVENT_HOT_DAYS."
    )
    list_display = ["event_type", "aggregate_id", "sequence", "state", "error", "created"]
    list_filter = [EventStateFilter, ChosenFilter, AgeFilter, PeriodFilter]
    csv_columns = (
        "id",
        "event_type",
        "aggregate_id",
        "sequence",
        "retry_count",
        "last_error",
        "created_at",
        "published_at",
        "dead_lettered_at",
        "discarded_at",
    )
    search_fields = ["aggregate_id"]
    search_help_text = "An event's id, or an aggregate's (an order's)."
    actions = ["republish", "discard", "send_again"]

    @admin.display(description="state")
    def state(self, event: DomainEvent) -> SafeString:
        if event.published_at:
            return pill("sent", "published")
        if event.discarded_at:
            return pill("discarded")
        if event.dead_lettered_at:
            return pill("dead_lettered")
        return pill("failed", "failing") if event.retry_count else pill("pending", "not published")

    @admin.display(description="last error")
    def error(self, event: DomainEvent) -> str:
        return event.last_error[:80] or "–"

    @admin.display(description="created")
    def created(self, event: DomainEvent) -> str:
        return show_time(event.created_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DomainEvent], search_term: str
    ) -> tuple[QuerySet[DomainEvent], bool]:
        """Search by the id of the event or of the aggregate. Both have an index."""
        if not (text := search_term.strip()):
            return queryset, False
        if (wanted := parse_uuid(text)) is None:
            return queryset.none(), False
        if queryset.filter(id=wanted).exists():
            return queryset.filter(id=wanted), False
        return queryset.filter(aggregate_id=wanted), False

    def audited(self, row: DomainEvent) -> dict[str, Any]:
        return {"order_id": order_of(row)}

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("events.resolve_domainevent")

    @admin.action(description="Republish, and the later events of its aggregate", permissions=["resolve"])
    def republish(self, request: HttpRequest, queryset: QuerySet[DomainEvent]) -> HttpResponse | None:
        """Retry dead-lettered and failing events at once, with all their retries."""
        if _all_dead(request):
            return start_for_list(request, action="events.republish")
        _resolve(self, request, queryset, DomainEvent.objects.republish, "Republished")
        return None

    @admin.action(
        description="Discard, so that the later events of its aggregate are published",
        permissions=["resolve"],
    )
    def discard(self, request: HttpRequest, queryset: QuerySet[DomainEvent]) -> HttpResponse | None:
        """Discard dead-lettered events."""
        if _all_dead(request):
            return start_for_list(request, action="events.discard")
        _resolve(self, request, queryset, DomainEvent.objects.discard, "Discarded")
        return None

    @admin.action(description="Send again what was published", permissions=["resolve"])
    def send_again(self, request: HttpRequest, queryset: QuerySet[DomainEvent]) -> None:
        """Send published events to their topics again."""
        ids = list(queryset.order_by("id").values_list("id", flat=True)[:MOST_AT_ONCE])
        events = DomainEvent.objects.published().filter(id__in=ids)
        try:
            result = resend_events(events=events, limit=MOST_AT_ONCE)
        except BrokerAway as error:
            words = f"The broker does not take them now ({error}). Some may have been sent. Send them again."
            self.message_user(request, words, messages.ERROR)
            return
        with transaction.atomic():
            for event in events.exclude(id__in=list(result.refused)):
                self.log_change(request, event, "Sent again.")
        left = len(ids) - result.sent - len(result.refused)
        refused = len(result.refused)
        self.message_user(request, f"Sent again: {result.sent}. Refused: {refused}. Left alone: {left}.")


@admin.register(InboundDeadLetter)
class InboundDeadLetterAdmin(TriageAdmin[InboundDeadLetter]):
    """Events of other services that could not be processed. Operators replay or discard them."""

    audit_kind = AuditRow.Kind.EVENT
    is_named_in_audit = False

    menu = MenuItem(60, "Inbound")
    change_list_template = "admin/events/inbounddeadletter/change_list.html"
    empty_text = "No event of another service has failed. manage.py consume_events adds failed events here."
    list_display = ["topic", "event_id", "state", "short", "failed"]
    list_filter = [ChosenFilter, PeriodFilter]
    csv_columns = (
        *("id", "topic", "key", "event_id", "consumer", "is_exact", "error"),
        *("failed_at", "replay_requested_at", "replayed_at", "discarded_at"),
    )
    search_fields = ["event_id"]
    search_help_text = "An event's id."
    actions = ["replay", "discard"]
    fields = ["error", "topic", "event_id", "state", "failed", "consumer", "key", "is_exact", "envelope"]

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "events_inbounddeadletter_resolve"
        return [
            path("<uuid:id>/resolve/", view(self.resolve_view), name=name),
            path("refused/", view(self.refused_view), name="events_refused"),
            *super().get_urls(),
        ]

    def refused_view(self, request: HttpRequest) -> HttpResponse:
        """List what was refused over HTTP, the latest first. Nothing of it was stored, nor whose it was."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        require_unbound(request)
        lines = [
            (row, show_time(row.first_at), show_time(row.last_at))
            for row in RefusedEvent.objects.order_by("-last_at", "id")[:MOST]
        ]
        context = {**self.admin_site.each_context(request), "title": "Refused over HTTP", "lines": lines}
        return TemplateResponse(request, "admin/events/inbounddeadletter/refused.html", context)

    def resolve_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Replay or discard one dead letter, and return to its page."""
        if request.method != "POST" or not self.has_resolve_permission(request):
            raise PermissionDenied
        queryset = self.get_queryset(request).filter(id=id)
        if "discard" in request.POST:
            _resolve(self, request, queryset, InboundDeadLetter.objects.discard, "Discarded")
        else:
            _resolve(self, request, queryset, InboundDeadLetter.objects.request_replay, "Replayed")
        return HttpResponseRedirect(reverse("admin:events_inbounddeadletter_change", args=[id]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add what to do next, and whether the user may do it."""
        letter: InboundDeadLetter = context["original"]
        is_open = not letter.replayed_at and not letter.discarded_at
        is_undecided = is_open and not letter.replay_requested_at
        context["advice"] = _next_step(letter)
        if self.has_resolve_permission(request):
            context |= {"may_replay": is_undecided and letter.is_exact, "may_discard": is_open}
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="state")
    def state(self, letter: InboundDeadLetter) -> SafeString:
        if letter.replayed_at:
            return pill("sent", "replayed")
        if letter.discarded_at:
            return pill("discarded")
        if letter.replay_requested_at:
            return pill("pending", "to replay")
        return pill("dead_lettered", "dead" if letter.is_exact else "dead, not exact")

    @admin.display(description="error")
    def short(self, letter: InboundDeadLetter) -> str:
        return letter.error[:120]

    @admin.display(description="failed")
    def failed(self, letter: InboundDeadLetter) -> str:
        return show_time(letter.failed_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[InboundDeadLetter], search_term: str
    ) -> tuple[QuerySet[InboundDeadLetter], bool]:
        if not (text := search_term.strip()):
            return queryset, False
        wanted = parse_uuid(text)
        return (queryset.filter(event_id=wanted) if wanted else queryset.none()), False

    def audited(self, row: InboundDeadLetter) -> dict[str, Any]:
        return {"order_id": order_of(row)}

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("events.resolve_inbounddeadletter")

    @admin.action(
        description="Replay what is exactly as it came (the consumer processes it again)",
        permissions=["resolve"],
    )
    def replay(self, request: HttpRequest, queryset: QuerySet[InboundDeadLetter]) -> HttpResponse | None:
        if _all_of_a_period(request):
            return start_for_list(request, action="events.replay")
        _resolve(self, request, queryset, InboundDeadLetter.objects.request_replay, "Replayed")
        return None

    @admin.action(description="Discard", permissions=["resolve"])
    def discard(self, request: HttpRequest, queryset: QuerySet[InboundDeadLetter]) -> HttpResponse | None:
        """Discard the dead letters. They stay in the list."""
        if _all_of_a_period(request):
            return start_for_list(request, action="events.discard_inbound")
        _resolve(self, request, queryset, InboundDeadLetter.objects.discard, "Discarded")
        return None


def _next_step(letter: InboundDeadLetter) -> str:
    if letter.discarded_at or letter.replayed_at:
        return "Nothing is left to do."
    if letter.replay_requested_at:
        return "Its consumer processes it within seconds, or after the pause of the consumers."
    if not letter.is_exact:
        return (
            "This is not exactly what came. Have its sender correct it and send it again. Discard this one."
        )
    return "Remove the cause, then replay it. Discard it if nobody needs it, or if its sender sent it again."


def _all_dead(request: HttpRequest) -> bool:
    """Return whether the user selected all dead events, perhaps of a period. A job then changes them."""
    return request.GET.get("state") == "dead-lettered" and _all_of_a_period(request, except_name="state")


def _all_of_a_period(request: HttpRequest, *, except_name: str = "") -> bool:
    """Return whether the user selected all rows of the list, filtered at most by a period and this one."""
    asked = {name for name, value in request.GET.items() if value} - {"p", "o", except_name}
    return request.POST.get("select_across") == "1" and asked <= set(periods.NAMES)


def _resolve(
    page: TriageAdmin[Any], request: HttpRequest, queryset: QuerySet[Any], verb: Verb, done: str
) -> None:
    """Apply `verb` to the selected rows, log each changed row, and show how many there are."""
    ids = list(queryset.order_by("id").values_list("id", flat=True)[:MOST_AT_ONCE])
    with transaction.atomic():
        changed = verb(ids=ids)
        rows: Iterable[Model] = queryset.model.objects.filter(id__in=changed)
        for row in rows:
            page.log_change(request, row, f"{done}.")
    page.message_user(request, f"{done}: {len(changed)}. Left alone: {len(ids) - len(changed)}.")


@searches(30)
def events(request: HttpRequest, term: Term) -> Iterator[Hit]:
    """Find an event by its id. The order's page lists the events of an order."""
    if (id := term.id) is None:
        return
    if request.user.has_perm("events.view_domainevent"):
        for event in DomainEvent.objects.filter(id=id):
            url = reverse("admin:events_domainevent_change", args=[event.id])
            state = "published" if event.published_at else ""
            yield Hit(f"event {event.id}", "event", str(event), url, at=event.created_at, state=state)
    if request.user.has_perm("events.view_inbounddeadletter"):
        letters = shops_of(request).only(InboundDeadLetter.objects.filter(event_id=id))
        for letter in letters.order_by("-id")[:SHOWN]:
            url = reverse("admin:events_inbounddeadletter_change", args=[letter.id])
            key, kind = f"inbound {letter.id}", "inbound dead letter"
            yield Hit(key, kind, str(letter), url, at=letter.failed_at, state=letter.error[:80])
