"""The tables that every process needs: heartbeats, pauses, jobs, the audit, sums of charts, users' shops."""

from runtime.models.audit import AuditRow
from runtime.models.bindings import UserBinding
from runtime.models.heartbeats import Heartbeat
from runtime.models.jobs import BulkJob
from runtime.models.pauses import Pause
from runtime.models.traffic import TrafficSum

__all__ = ["AuditRow", "BulkJob", "Heartbeat", "Pause", "TrafficSum", "UserBinding"]
