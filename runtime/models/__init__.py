"""The tables that every process needs: heartbeats, pauses, jobs, the audit, and the sums of the charts."""

from runtime.models.audit import AuditRow
from runtime.models.heartbeats import Heartbeat
from runtime.models.jobs import BulkJob
from runtime.models.pauses import Pause
from runtime.models.traffic import TrafficSum

__all__ = ["AuditRow", "BulkJob", "Heartbeat", "Pause", "TrafficSum"]
