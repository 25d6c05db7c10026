"""Set constants of config.settings in processes that tests start. Other processes run exactly as shipped.

`tests.kit.settings` reads the one variable. Tests in their own process use the fixture `settings` instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

#: The variable with the constants as JSON.
VARIABLE = "ORDERPOST_TESTS_CONSTANTS"
#: The constants that processes of tests and of the chaos run change.
NAMES = ("DATABASE_TIMEOUT", "AMBIGUOUS_HOLD_SECONDS", "BREAKER_OPEN_SECONDS", "PARTITION_GRACE_DAYS")


def move_constants(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with each constant in it moved to where tests.kit.settings reads it."""
    constants = {name: float(environment[name]) for name in NAMES if name in environment}
    if not constants:
        return dict(environment)
    rest = {name: value for name, value in environment.items() if name not in NAMES}
    return rest | {"DJANGO_SETTINGS_MODULE": "tests.kit.settings", VARIABLE: json.dumps(constants)}
