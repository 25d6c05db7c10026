"""Log only the first error of an outage. A loop meets the same error at every try."""

from __future__ import annotations

from typing import Any


class Outage:
    """The outage of one server, as one loop sees it. `log` is the structlog logger of the loop's module."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._logged = ""

    def warn(self, event: str, error: Exception, **fields: object) -> None:
        """Log `event` with the error, unless it was the last event of this outage."""
        if event != self._logged:
            self._log.warning(event, error=str(error).strip(), **fields)
        self._logged = event

    def end(self, event: str = "") -> None:
        """Note that the server has answered, and log `event` after an outage.

        The next error is logged again.
        """
        if self._logged and event:
            self._log.info(event)
        self._logged = ""
