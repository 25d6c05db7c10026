"""The shipped settings with some other constants, for processes that tests start (tests.kit.constants)."""

from __future__ import annotations

import json
import os

from config.settings import *  # noqa: F403
from config.settings import DATABASES
from tests.kit import constants

_given = json.loads(os.environ[constants.VARIABLE])
globals().update(_given)
if "DATABASE_TIMEOUT" in _given:
    for _alias in ("default", "direct"):
        DATABASES[_alias]["OPTIONS"]["deadline"] = _given["DATABASE_TIMEOUT"]
