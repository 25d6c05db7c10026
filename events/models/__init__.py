"""The tables of domain events: sent ones, received ones, and inbound dead letters.

`states` names their states. `envelope_sql` writes the envelope of an event in SQL.
"""

from events.models.events import SHARDS, DomainEvent
from events.models.inbox import InboundDeadLetter, ProcessedEvent

__all__ = ["SHARDS", "DomainEvent", "InboundDeadLetter", "ProcessedEvent"]
