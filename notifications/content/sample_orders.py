"""The sample orders that the start and previews render. The app that has orders registers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Samples = Mapping[str, Mapping[str, object]]
_samples_of: list[Callable[[str], Samples]] = []
#: The name of the sample that previews show.
USUAL = "usual"


def register_samples(samples_of: Callable[[str], Samples]) -> None:
    """Register what returns the variables of sample orders after an event, by the samples' names.

    One is `USUAL`. In the first, every variable has a value.
    """
    _samples_of[:] = [samples_of]


def of(event_type: str) -> Samples:
    return _samples_of[0](event_type)


def order_for(event_type: str) -> Mapping[str, object]:
    """Return the variables of a sample order that fits an event."""
    return of(event_type)[USUAL]
