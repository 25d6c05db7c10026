"""Spans: real OTLP where the environment asks for it, nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from local.machine import PROJECT
from runtime.telemetry import tracing
from tests.kit import warm
from tests.kit.otlp import Receiver
from tests.kit.waiting import PATIENCE

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BEGIN = "from runtime.telemetry.tracing import span, start, traceparent_of\nstart()\n"
ROOTS_ARE_NOT_SAMPLED = {
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0",
}


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: the SDK is for the whole life of one."""
    return warm.run([sys.executable, "-c", BEGIN + code], environment={**os.environ, **environment})


def test_without_the_environment_nothing_is_recorded_and_no_sdk_imported():
    code = f"""
import sys
with span("work", parent={REMOTE!r}, links=[{REMOTE!r}]) as work:
    work.set_attribute("b", 2)
assert traceparent_of(work) == "" and not work.is_recording()
assert not any(name.startswith("opentelemetry.sdk") for name in sys.modules)
"""
    command = [
        sys.executable,
        "-c",
        BEGIN + code,
    ]  # a fork has what the warm process imported
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def test_a_span_has_its_parent_its_links_its_attributes_and_the_class_of_its_failure():
    code = f"""
from opentelemetry.trace import SpanKind
try:
    with span("request", kind=SpanKind.SERVER, parent={REMOTE!r}) as outer:
        outer.update_name("POST /orders")
        outer.set_attribute("a", 1)
        with span("save", links=[{REMOTE!r}, ""]) as inner:
            assert traceparent_of(inner).split("-")[1] == {REMOTE!r}.split("-")[1]
            raise LookupError("alice@example.com")
except LookupError:
    pass
"""
    with Receiver() as receiver:
        done = run(code, {**receiver.environment, "OTEL_SERVICE_NAME": "web"})
        assert done.returncode == 0, done.stderr
        spans = {span.name: span for span in receiver.until(lambda spans: len(spans) == 2)}
    outer, inner = spans["POST /orders"], spans["save"]
    assert (outer.kind, outer.service, outer.attributes) == ("SERVER", "web", {"a": 1})
    assert (outer.trace_id, outer.parent_id) == tuple(REMOTE.split("-")[1:3])
    assert (inner.trace_id, inner.parent_id) == (outer.trace_id, outer.span_id)
    assert inner.links == ("b7ad6b7169203331",)
    assert (inner.error, outer.error) == ("LookupError", "LookupError")
    assert (inner.events, outer.events) == ((), ())
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_process_that_forks_records_in_parent_and_child():
    code = """
import os
with span("parent"): pass
if os.fork() == 0:
    with span("child"): pass
else:
    os.wait()
"""
    with Receiver() as receiver:
        done = run(code, receiver.environment)
        assert done.returncode == 0, done.stderr
        assert sorted(span.name for span in receiver.until(lambda spans: len(spans) == 2)) == [
            "child",
            "parent",
        ]


def test_a_sampler_that_drops_a_trace_says_so_in_its_traceparent():
    code = """
with span("work") as work:
    assert traceparent_of(work)[-1] in "02468ace"  # the lowest bit says that it is sampled
"""
    with Receiver() as receiver:
        done = run(code, {**receiver.environment, "OTEL_TRACES_SAMPLER": "always_off"})
        assert done.returncode == 0, done.stderr
        assert receiver.spans == []


def test_what_is_below_an_unsampled_span_is_left_out_and_what_a_sampled_one_caused_is_not():
    code = f"""
with span("root") as root:
    with span("child") as child:
        assert not child.is_recording()
        assert traceparent_of(child)[3:35] == traceparent_of(root)[3:35]
    with span("other", parent={REMOTE!r}) as other, span("below") as below:
        assert other.is_recording() and below.is_recording()
    with span("again") as again:
        assert not again.is_recording()
with span("asked not to", parent={REMOTE[:-1]!r} + "0") as asked:
    assert not asked.is_recording() and traceparent_of(asked)[3:35] == {REMOTE!r}[3:35]
"""
    with Receiver() as receiver:
        done = run(code, receiver.environment | ROOTS_ARE_NOT_SAMPLED)
        assert done.returncode == 0, done.stderr
        assert sorted(span.name for span in receiver.spans) == ["below", "other"]


def test_a_sampler_that_asks_no_parent_records_below_an_unsampled_one():
    code = f"""
with span("asked not to", parent={REMOTE[:-1]!r} + "0") as asked, span("below"):
    assert traceparent_of(asked)[-1] in "13579bdf"
"""
    with Receiver() as receiver:
        done = run(code, {**receiver.environment, "OTEL_TRACES_SAMPLER": "always_on"})
        assert done.returncode == 0, done.stderr
        assert sorted(span.name for span in receiver.spans) == ["asked not to", "below"]


def test_without_the_sdk_the_start_fails_and_says_what_to_install(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ImproperlyConfigured, match=r"install requirements/image\.txt"):
        tracing.start()
    pinned = (PROJECT / "requirements" / "image.txt").read_text()
    assert "\nopentelemetry-sdk==" in pinned and "\nopentelemetry-exporter-otlp-proto-http==" in pinned


def test_it_can_be_turned_off_by_name(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    tracing.start()
