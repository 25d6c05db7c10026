"""`python -m benchmarks.overhead [ROUNDS] 2>lines.log`: what traces and lines of published events cost.

As ratios of the CPU time of one process with and without, in turns, so that other work on the machine meets
both. Traces are sampled at 10 % and exported within the time that is measured. PostgreSQL's CPU is not in it:
the share of the whole is smaller.
"""

from __future__ import annotations

import io
import json
import logging
import os
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks import relay as relayed
from benchmarks import rows
from benchmarks.rig import HOST, Rig

#: How much work is done with, and then without, so that both meet the same load; and how many such pairs
#: make a round, of which there is a ratio.
PAYS, MAILS, EVENTS = (1, 300), (25, 40), (500, 30)
#: Every row is of a trace, and one trace in ten is sampled.
TRACED = (
    "'00-' || md5(id::text) || '-' || substr(md5(id::text), 1, 16)"
    " || CASE WHEN random() < 0.1 THEN '-01' ELSE '-00' END"
)
SAMPLED = {
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.1",
    "OTEL_SERVICE_NAME": "benchmark",
    "OTEL_BSP_SCHEDULE_DELAY": "600000",  # the measurement says when
}


class Process:
    """The web, the worker and the relay in one process. Each piece of work returns its CPU seconds."""

    def __init__(self) -> None:
        import django

        django.setup()
        from django.core.management import call_command

        from notifications import tasks
        from outbox.core import tracing
        from outbox.events import notify
        from outbox.events.relay import Relay

        tasks.waker.wake = notify.waker.wake = lambda: None  # type: ignore[method-assign]
        tracing.start()
        self.tracing, self.recorder = tracing, tracing._recorder
        assert self.recorder is not None
        out = io.StringIO()
        call_command("create_token", uuid.uuid4().hex, "--scope", "all", stdout=out)
        self.token = out.getvalue().split()[-1]
        self.works = 0
        self.relay = Relay()
        self.relay.step()

    def trace(self, on: bool) -> None:
        """Record spans, or do not."""
        self.tracing._recorder = self.recorder if on else None

    def lines(self, on: bool) -> None:
        """Log published events, or do not; without spans."""
        self.tracing._recorder = None
        logging.getLogger("outbox.events.published").setLevel(logging.INFO if on else logging.WARNING)

    def pays(self) -> float:
        """Answer requests that pay an order each."""
        from django.db import connection

        with connection.cursor() as cursor:
            ids = rows.place(cursor, PAYS[0])
        return self._measured(lambda: [self._pay(id) for id in ids], flush_every=PAYS[1])

    def drains(self) -> float:
        """Send e-mails."""
        from django.db import connection

        from notifications.delivery.drain import poll

        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM email_notifications")
            rows.mails(cursor, MAILS[0])
            cursor.execute("UPDATE email_notifications SET traceparent = " + TRACED)

        return self._measured(lambda: poll(record=False), flush_every=MAILS[1])

    def relays(self) -> float:
        """Publish events."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM outbox_events")
            cursor.execute(relayed.EVENTS, [EVENTS[0]])
            cursor.execute(
                f"UPDATE outbox_events SET metadata = metadata || jsonb_build_object('traceparent', {TRACED})"
            )
        before = self.relay.published

        def publish() -> None:
            while self.relay.step():
                pass

        used = self._measured(publish, flush_every=1)
        assert self.relay.published - before == EVENTS[0]
        return used

    def _measured(self, work: Callable[[], object], *, flush_every: int) -> float:
        """Return the CPU seconds of `work`; every so often with the export of its spans, as in life."""
        began = time.process_time()
        work()
        if self.tracing._recorder is not None:
            self.works += 1
            if self.works % flush_every == 0:
                self.tracing._recorder.provider.force_flush()
        return time.process_time() - began

    def _pay(self, id: uuid.UUID) -> None:
        from config.wsgi import application

        environ: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": f"/api/v1/orders/{id}/pay",
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": "0",
            "HTTP_HOST": "localhost",
            "HTTP_AUTHORIZATION": f"Bearer {self.token}",
            "HTTP_IDEMPOTENCY_KEY": str(id),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": sys.stderr,
        }
        answered: list[str] = []
        answer = application(environ, lambda status, headers, *_: answered.append(status))
        b"".join(answer)
        answer.close()
        assert answered[0].startswith("200"), answered


def paired(
    switch: Callable[[bool], None], work: Callable[[], float], pairs: int, rounds: int
) -> dict[str, float]:
    """Return what `work` costs more when switched on (0.01 is 1 %): median and quartiles over the pairs."""
    for on in (True, False):
        switch(on)
        work()  # warm
    used: dict[bool, float] = {True: 0.0, False: 0.0}
    ratios = []
    for number in range(rounds):
        before = dict(used)
        for _ in range(pairs):
            for on in (True, False) if number % 2 else (False, True):
                switch(on)
                used[on] += work()
        ratios.append((used[True] - before[True]) / (used[False] - before[False]) - 1)
    low, median, high = statistics.quantiles(ratios, n=4)
    each = used[False] / rounds / pairs
    return {"low": low, "median": median, "high": high, "without": each}


def run(rounds: int) -> None:
    """Measure in this process; print the parts as JSON."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    it = Process()
    parts = {
        "traces at 10 %, an order's payment": (it.trace, it.pays, PAYS),
        "traces at 10 %, drain": (it.trace, it.drains, MAILS),
        "traces at 10 %, relay": (it.trace, it.relays, EVENTS),
        "a line for each published event, relay": (it.lines, it.relays, EVENTS),
    }
    found = {}
    for name, (switch, work, (count, pairs)) in parts.items():
        found[name] = paired(switch, work, pairs, rounds)
        found[name]["without"] *= 1e6 / count
        print(name, found[name], file=sys.stderr)
    it.relay.close()
    print(json.dumps(found))


def main(rounds: int) -> None:
    """Start the servers and a cheap provider, which takes the spans, too."""
    with Rig(EMAIL_RATE_LIMIT="0", LOG_LEVEL="INFO", **SAMPLED) as rig:
        rig.start_provider(delay=0.0)
        code = f"from benchmarks.overhead import run; run({rounds})"
        sink = f"http://{HOST}:{rig.provider_port}"
        found = json.loads(rig.python("-c", code, OTEL_EXPORTER_OTLP_ENDPOINT=sink))
    for name, one in found.items():
        print(
            f"{name}: {one['median']:+.1%} (quartiles {one['low']:+.1%} to {one['high']:+.1%}),"
            f" without {one['without']:.0f} µs each"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
