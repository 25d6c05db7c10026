"""The log of an outage."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from runtime.process.outage import Outage


def test_each_event_of_an_outage_is_logged_once_and_again_after_its_end():
    outage = Outage(structlog.get_logger("ours"))
    with capture_logs() as lines:
        for event in ("database away", "database away", "broker away"):
            outage.warn(event, OSError(" refused\n"))
        outage.end()
        outage.warn("broker away", OSError("refused"))
    assert [line["event"] for line in lines] == ["database away", "broker away", "broker away"]
    assert {line["error"] for line in lines} == {"refused"}


def test_the_end_of_an_outage_is_logged_once():
    outage = Outage(structlog.get_logger("ours"))
    with capture_logs() as lines:
        outage.end("it is back")
        outage.warn("away", OSError("refused"))
        outage.end("it is back")
        outage.end("it is back")
    assert [line["event"] for line in lines] == ["away", "it is back"]
