"""The tables that every process needs: heartbeats, pauses, jobs, the sums of the charts, users' shops."""

from runtime.models.bindings import UserBinding
from runtime.models.heartbeats import Heartbeat
from runtime.models.jobs import BulkJob
from runtime.models.pauses import Pause
from runtime.models.traffic import TrafficSum

__all__ = ["BulkJob", "Heartbeat", "Pause", "TrafficSum", "UserBinding"]
