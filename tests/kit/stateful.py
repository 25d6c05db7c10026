"""Settings of Hypothesis for the tests that compare a table with a model."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: MODEL_EXAMPLES asks for more of them, and for others each time.
many = settings(
    max_examples=int(os.environ.get("MODEL_EXAMPLES", "40")),
    stateful_step_count=50,
    derandomize="MODEL_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
