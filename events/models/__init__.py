"""The tables of domain events: sent ones, received ones, inbound dead letters, and refusals.

`states` names their states. `envelope_sql` writes the envelope of an event in SQL.
"""

from events.models.events import SHARDS, DomainEvent
from events.models.inbox import InboundDeadLetter, ProcessedEvent, RefusedEvent

__all__ = ["SHARDS", "DomainEvent", "InboundDeadLetter", "ProcessedEvent", "RefusedEvent"]
