"""One chaos run: start everything, let customers buy, break things, heal, wait, audit."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import psycopg

from local.machine import HOST, free_port
from local.sandbox import WebhookSettings
from notifications.providers.dialect import Dialect
from notifications.providers.registry import declarations
from tests.chaos.faults import FAULTS, FULL_DISK, Fault
from tests.chaos.provider_faults import slow_smtp
from tests.chaos.rollovers import check_cold_files
from tests.chaos.trends import Sampler, Trend, describe, trends
from tests.chaos.world import PROCESSES, SPARED, World
from tests.kit.audit import Findings, audit, settle, wait_for_listener
from tests.kit.customers import Customers
from tests.kit.listener import Listener
from tests.kit.shop import KEYS, WITH_OTHER_SHOP, Shop
from tests.kit.smtp import SmtpServer
from tests.kit.waiting import PATIENCE

HOLD_SECONDS = 15
LEASE_SECONDS = 20  # long enough for a slow SMTP server
SETTINGS = {
    "POLL_INTERVAL": "2",
    "AMBIGUOUS_HOLD_SECONDS": str(HOLD_SECONDS),
    "EMAIL_RATE_LIMIT": "100",
    "BREAKER_OPEN_SECONDS": "1",
    "RETRY_BACKOFF_BASE": "1",
    "LOG_LEVEL": "INFO",
    "DATABASE_TIMEOUT": "4",
    "LEASE_SECONDS": str(LEASE_SECONDS),
}
#: Runs of so many seconds also check that memory, files and sessions do not grow.
LONG = 1200.0
#: Few threads send, so that they have all begun, with their connections, before the growth is measured.
LONG_SETTINGS = {"EVENT_STREAM_LENGTH": "500", "EMAIL_CONCURRENCY": "8"}
#: The providers without `--providers`. The second one is away, except during `slow_smtp`.
PROVIDERS = ("sendgrid", "smtp")

OPERATOR = """
    INSERT INTO auth_user
        (password, is_superuser, username, first_name, last_name, email, is_staff, is_active, date_joined)
    VALUES ('!', true, 'operator', '', '', '', true, true, now()) RETURNING id
"""


@dataclasses.dataclass
class Report:
    """The events of a run, and the auditor's findings."""

    seed: int
    seconds: float
    providers: Sequence[str]
    webhooks: bool
    faults: Counter[str]
    changes: int
    other_shops_orders: int
    mails: int
    events: int
    retries: int
    dead_lettered: int
    dead_events: int
    slowest_answer: float
    slowest_stop: float
    lost_answers: int
    in_flight: int
    failed_starts: Counter[str]
    findings: Findings
    trends: list[Trend]

    @property
    def passed(self) -> bool:
        """Whether nothing is lost, stuck, out of order, wrong, growing, or doubled more than is allowed."""
        return not any(self.findings.counts().values()) and all(trend.flat for trend in self.trends)

    def text(self) -> str:
        """Return the report as text."""
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, {', '.join(self.providers)},"
            f" webhooks {'on' if self.webhooks else 'off'}",
            "faults: " + ", ".join(f"{name} {count}" for name, count in self.faults.most_common()),
            f"{self.changes} changes acknowledged ({self.retries} asked again),"
            f" {self.other_shops_orders} orders of another shop paid, {self.mails} e-mails,"
            f" {self.events} events; by hand: {self.dead_lettered} dead e-mails resent,"
            f" {self.dead_events} dead events republished",
            f"slowest answer to a customer {self.slowest_answer:.1f} s,"
            f" slowest end after SIGTERM {self.slowest_stop:.1f} s",
            "exits during a start, started again: "
            + (", ".join(f"{name} {count}" for name, count in (+self.failed_starts).items()) or "none"),
            f"events repeated {self.findings.events_repeated},"
            f" gone with the broker's data {self.findings.events_gone_with_the_broker}",
            f"doubled as the guarantee allows, without a webhook in time: "
            f"{self.findings.doubled_after_lost_answers} after one of {self.lost_answers} lost answers,"
            f" {self.findings.doubled_after_crashes} of the {self.in_flight} in flight at a crash",
            "  ".join(f"{kind}: {count}" for kind, count in self.findings.counts().items()),
        ]
        for kind in self.findings.counts():
            lines += [f"  {kind}: {sentence}" for sentence in getattr(self.findings, kind)[:20]]
        return "\n".join([*lines, *describe(self.trends)])


def run(
    *,
    seed: int,
    seconds: float,
    providers: Sequence[str] | None = None,
    webhooks: bool = True,
    rate: float = 12.0,
    faults: Sequence[Fault] | None = None,
    grace: float = 15.0,
    say: Callable[[str], None] = print,
) -> Report:
    """Do one run. With `faults`, cause each of these once in that order, otherwise random ones.

    The SMTP server listens all the time if `providers` names it. A process that needs more than `grace`
    seconds to exit after SIGTERM is a finding.
    """
    chance = random.Random(seed)
    names = list(providers or PROVIDERS)
    with contextlib.ExitStack() as stack:
        settings = SETTINGS | WITH_OTHER_SHOP | {"EMAIL_PROVIDERS": ",".join(names)}
        shop = stack.enter_context(Shop(durable_valkey=True, proxied=True, tls=True, **settings))
        smtp = SmtpServer(sandbox=shop.sandbox)
        shop.settings |= {"EMAIL_URL": f"smtp+tls://{HOST}:{smtp.port}"}
        shop.settings |= {"ARCHIVE_URL": (shop.folder / "archive").as_uri()}
        keys = lead_to_sandbox(shop, names)
        if webhooks:
            shop.sandbox.webhooks.settings = WebhookSettings(url=shop.webhooks, keys=keys)
        always = providers is not None and "smtp" in names
        world = World(shop, chance, smtp, names, smtp_always=always, grace=grace)
        if world.smtp_always:
            stack.enter_context(smtp)
        with psycopg.connect(shop.postgres.url, autocommit=True) as connection:
            connection.execute(FULL_DISK.encode())
        [(world.operator,)] = shop.query(OPERATOR)
        is_long = seconds >= LONG
        if is_long:
            shop.settings |= LONG_SETTINGS
        shop.start(*PROCESSES)
        ports = [shop.port]
        if is_long:
            ports.append(free_port())
            shop.start("web:2", port=ports[1])
            shop.start(*SPARED)
        listener = Listener(url=shop.valkey.url)
        listener.start()
        customers = Customers(shop, rate=rate, seed=seed, ports=ports, of_other_shop=0.2)
        with customers, Sampler(shop) as sampler:
            lasted, happened = break_things(world, seconds=seconds, faults=faults, say=say)
            shop.sandbox.heal()
        dead, dead_events = settle(shop)
        wait_for_bad_items(world)
        check_cold_files(world)
        world.supervise()
        wait_for_listener(listener)
        listener.stop()
        lost_answers = shop.sandbox.mailbox.lost_answers()
        if webhooks and all(_has_webhooks(shop, name) for name in names):
            late = shop.sandbox.webhooks.late()
            lost_answers = _later(lost_answers, late, than=HOLD_SECONDS)
            world.in_flight = _later(world.in_flight, late, than=LEASE_SECONDS)
        findings = audit(
            database=shop.postgres.url,
            acknowledged=customers.acknowledged,
            accepted=shop.accepted(),
            seen=listener.seen,
            losses=world.losses,
            held=world.held,
            entries=world.entries,
            jobs=world.jobs,
            other_shops_orders=customers.other_shops_orders,
            other_shops_events=customers.other_shops_events,
            lost_answers=lost_answers,
            in_flight=world.in_flight,
        )
        findings.wrong += customers.wrong + world.wrong
        report = Report(
            seed=seed,
            seconds=lasted,
            providers=names,
            webhooks=webhooks,
            faults=happened,
            changes=len(customers.acknowledged),
            other_shops_orders=len(customers.other_shops_orders),
            mails=len(shop.rows()),
            events=len(listener.seen),
            retries=customers.retries,
            dead_lettered=dead,
            dead_events=dead_events,
            slowest_answer=max(customers.slow_answers, default=0.0),
            slowest_stop=max((took for _, took in world.stops), default=0.0),
            lost_answers=sum(lost_answers.values()),
            in_flight=world.in_flight.total(),
            failed_starts=world.failed_starts,
            findings=findings,
            trends=trends(sampler.samples) if is_long else [],
        )
        if not report.passed:
            say(f"the logs of all processes are in {shop.keep_logs()}")
        return report


def break_things(
    world: World, *, seconds: float, faults: Sequence[Fault] | None, say: Callable[[str], None]
) -> tuple[float, Counter[str]]:
    """Cause faults one after the other. Return the seconds that it took, and how often each happened."""
    happened: Counter[str] = Counter()
    planned = iter(faults) if faults is not None else None
    weights = FAULTS if "smtp" in world.providers else FAULTS | {slow_smtp: 0}
    began = time.monotonic()
    while time.monotonic() - began < seconds or planned is not None:
        world.some(1.0, 4.0)
        world.supervise()
        if planned is not None:
            fault = next(planned, None)
            if fault is None:
                break
        else:
            (fault,) = world.chance.choices(list(weights), weights=list(weights.values()))
        at = time.monotonic() - began
        what = fault(world)
        happened[fault.__name__] += 1
        say(f"{at:7.1f} s  {fault.__name__}: {what}")
    return time.monotonic() - began, happened


def lead_to_sandbox(shop: Shop, providers: Sequence[str]) -> dict[str, str]:
    """Configure the providers that the sandbox plays. Return the keys that sign their webhooks."""
    keys = dict(KEYS)
    for declared in (declarations()[name] for name in providers):
        shop.settings |= {
            name: value.format(sandbox=shop.sandbox.url) for name, value in declared.sandbox.items()
        }
        if declared.make_key and declared.name not in keys:
            keys[declared.name], shop.settings[declared.webhook_key] = declared.make_key()
    return keys


def _later(counts: Mapping[str, int], late: Mapping[str, float], *, than: float) -> Counter[str]:
    """Return the counts of the notifications whose webhook was not taken within so many seconds.

    A hold waits no longer for a webhook, and a busy machine may post one later.
    """
    return Counter({id: count for id, count in counts.items() if late.get(id, 0.0) > than})


def _has_webhooks(shop: Shop, provider: str) -> bool:
    """Return whether the sandbox posts the events of a provider's mails."""
    return provider == "smtp" or type(shop.sandbox.dialects[provider]).posts is not Dialect.posts


def wait_for_bad_items(world: World) -> None:
    """Wait until the entries and jobs of the faults are where the auditor expects them."""
    deadline = time.monotonic() + PATIENCE
    last_loss = max((until for _, until in world.losses), default=0.0)
    keys = {entry.key for entry in world.entries if entry.at > last_loss}
    while time.monotonic() < deadline:
        letters = {key for (key,) in world.shop.query("SELECT key FROM inbound_dead_letters")}
        states = dict(world.shop.query("SELECT id::text, state FROM bulk_jobs"))
        if keys <= letters and all(states.get(id) in allowed for id, allowed in world.jobs.items()):
            return
        time.sleep(0.5)
