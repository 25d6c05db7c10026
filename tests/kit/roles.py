"""The roles of config/roles.py that an installation runs."""

from __future__ import annotations

from config import roles

#: Only some installations have them: docs/guides/triggers.md.
OPTIONAL = frozenset({"cdc"})
#: Every installation has a process of each. `migrate` ends.
RUNNING = [role for role in roles.commands() if role not in {"migrate", *OPTIONAL}]
