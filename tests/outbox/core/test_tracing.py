"""Spans: real OTLP where the environment asks for it, nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outbox.core import tracing
from tests.otlp import Receiver

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: the SDK is for the whole life of one."""
    given = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, timeout=60)


def test_without_the_environment_nothing_is_recorded_and_nothing_imported():
    code = """
import sys
from outbox.core import tracing
with tracing.span("work", parent="anything", attributes={"a": 1}) as span:
    span.set("b", 2); span.rename("other"); span.fail("why")
assert span.traceparent == "" and span is tracing.span("more")
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""
    done = run(code, {})
    assert done.returncode == 0, done.stderr


def test_a_span_has_its_parent_its_links_its_attributes_and_its_failure():
    code = f"""
from outbox.core import tracing
from outbox.core.tracing import Kind, span
try:
    with span("request", kind=Kind.SERVER, parent={REMOTE!r}, attributes={{"a": 1}}) as outer:
        outer.rename("POST /orders")
        with span("save", links=[{REMOTE!r}, ""]) as inner:
            assert inner.traceparent.split("-")[1] == {REMOTE!r}.split("-")[1]
            raise LookupError
except LookupError:
    pass
"""
    with Receiver() as receiver:
        done = run(code, {**receiver.environment, "OTEL_SERVICE_NAME": "web"})
        assert done.returncode == 0, done.stderr
        spans = {span.name: span for span in receiver.until(lambda found: len(found) == 2)}
    outer, inner = spans["POST /orders"], spans["save"]
    assert (outer.kind, outer.service, outer.attributes) == ("SERVER", "web", {"a": 1})
    assert (outer.trace_id, outer.parent_id) == tuple(REMOTE.split("-")[1:3])
    assert (inner.trace_id, inner.parent_id) == (outer.trace_id, outer.span_id)
    assert inner.links == ("b7ad6b7169203331",)
    assert (inner.error, outer.error) == ("LookupError", "LookupError")
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_process_that_forks_records_in_parent_and_child():
    code = """
import os
from outbox.core.tracing import span
with span("parent"): pass
if os.fork() == 0:
    with span("child"): pass
else:
    os.wait()
"""
    with Receiver() as receiver:
        done = run(code, receiver.environment)
        assert done.returncode == 0, done.stderr
        assert sorted(span.name for span in receiver.until(lambda found: len(found) == 2)) == [
            "child",
            "parent",
        ]


def test_a_sampler_that_drops_a_trace_says_so_in_its_traceparent():
    code = """
from outbox.core.tracing import span
with span("work") as work:
    assert int(work.traceparent[-2:], 16) & 1 == 0, work.traceparent
"""
    with Receiver() as receiver:
        assert run(code, {**receiver.environment, "OTEL_TRACES_SAMPLER": "always_off"}).returncode == 0
        assert receiver.spans == []


def test_what_is_below_an_unsampled_span_is_left_out_and_what_a_sampled_one_caused_is_not():
    code = f"""
from outbox.core.tracing import span
with span("root") as root:
    with span("child") as child:
        assert not child.recorded and child.traceparent == root.traceparent
    with span("other", parent={REMOTE!r}) as other, span("below") as below:
        assert other.recorded and below.recorded
    with span("again") as again:
        assert not again.recorded
with span("asked not to", parent={REMOTE[:-1]!r} + "0") as asked:
    assert not asked.recorded and asked.traceparent[3:35] == {REMOTE!r}[3:35]
"""
    ratio = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
    with Receiver() as receiver:
        done = run(code, receiver.environment | ratio)
        assert done.returncode == 0, done.stderr
        assert sorted(span.name for span in receiver.spans) == ["below", "other"]


def test_a_share_of_the_traces_is_sampled_each_of_them_whole():
    code = """
from outbox.core.tracing import is_sampled, span
for number in range(400):
    with span("root") as root, span("child") as child:
        assert root.recorded == child.recorded == is_sampled(root.traceparent), root.traceparent
        assert root.traceparent[3:35] == child.traceparent[3:35]
"""
    ratio = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    with Receiver() as receiver:
        done = run(code, receiver.environment | ratio)
        assert done.returncode == 0, done.stderr
        names = [span.name for span in receiver.spans]
        assert 120 < names.count("root") == names.count("child") < 280  # 8 standard deviations
        assert len({span.trace_id for span in receiver.spans}) == names.count("root")


def test_without_the_extra_the_start_fails_and_says_what_to_install(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(RuntimeError, match=r"install orderpost\[otel\]"):
        tracing.start()


def test_it_can_be_turned_off_by_name(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    tracing.start()
    assert tracing.span("work").traceparent == ""
