"""Sums of each minute and hour, for the admin's charts."""

from __future__ import annotations

from django.db import models


class TrafficSum(models.Model):
    """The sums of one minute or hour. Only `runtime.charts.sums` writes and reads them.

    A minute without a row was not summed. A minute in which nothing happened has an empty row.
    """

    MINUTE, HOUR = 60, 3600

    pk = models.CompositePrimaryKey("span", "start")
    span = models.PositiveSmallIntegerField()  # seconds: MINUTE or HOUR
    start = models.DateTimeField()
    counts = models.JSONField(default=dict)  # by series: {"placed": 12, "sent:<provider>": 9}
    spreads = models.JSONField(default=dict)  # durations by series, as runtime.charts.duration_histogram
    # States when the minute was summed: {"open:<provider>": 1}. An hour's also has numbers that other
    # processes add: {"unmatched:<provider>": 3}.
    samples = models.JSONField(default=dict)

    class Meta:
        db_table = "traffic_sums"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M}, {self.span} s"
