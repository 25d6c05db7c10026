"""Find variables of the environment that look like settings but that no setting has.

The settings collect the names while they read them. There is no second list of names.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Mapping

#: Libraries read more variables with these first words than the settings do.
LIBRARIES = frozenset({"AWS", "OTEL", "SENTRY", "GRANIAN"})
#: From this similarity on, a name is a misspelt setting, whatever its first word is.
ALMOST = 0.9
#: Kubernetes sets these in a pod for each Service of the namespace, such as one called `kafka`.
_SERVICE_LINK = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")


def find_unknown(*, environ: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return each unknown variable with the closest known one, or with "" if none is close.

    A variable looks like a setting if its first word begins two settings, or if it is almost a setting's
    name. A first word of a single setting proves nothing: others have a DATABASE_PASSWORD, too.
    """
    words = Counter(name.partition("_")[0] for name in names if "_" in name)
    ours = {word for word, count in words.items() if count > 1} - LIBRARIES
    accepted = {*names, *(f"{name}_FILE" for name in names)}
    closest_names = {}
    for name in sorted(environ.keys() - accepted):
        word, underscore, _ = name.partition("_")
        if word in LIBRARIES or _is_service_link(name, environ[name]):
            continue
        [closest] = difflib.get_close_matches(name, sorted(accepted), n=1) or [""]
        almost = difflib.SequenceMatcher(None, name, closest).ratio() >= ALMOST
        if (underscore and word in ours) or almost:
            closest_names[name] = closest
    return closest_names


def _is_service_link(name: str, value: str) -> bool:
    if _SERVICE_LINK.fullmatch(name):
        return True
    return name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(value) is not None
