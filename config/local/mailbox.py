"""The providers that the local run's sandbox stands in for: their settings, and the keys of their webhooks.

For `config.local`. A provider that has a setting of its own in the environment is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from config.local.files import is_given, write_private
from config.local.machine import HOST
from notifications.providers.registry import DEFAULT, Declaration, declarations

#: All that `settings` may fill in, for any provider.
NAMES = (
    "EMAIL_PROVIDERS",
    *(
        name
        for declared in declarations().values()
        if declared.sandbox
        for name in (*declared.sandbox, *filter(None, [declared.webhook_key]))
    ),
)


def played(*, environ: Mapping[str, str]) -> list[Declaration]:
    """Return the configured providers that have neither a key nor an address of their own."""
    names = environ.get("EMAIL_PROVIDERS") or ""
    if path := environ.get("EMAIL_PROVIDERS_FILE"):
        names = Path(path).read_text()
    wanted = [name.strip() for name in (names.strip() or DEFAULT).split(",")]
    return [
        declared
        for name in wanted
        if (declared := declarations().get(name)) and declared.sandbox
        if not any(is_given(setting, environ=environ) for setting in declared.sandbox)
    ]


def settings(*, environ: Mapping[str, str], port: int, keys_file: Path) -> dict[str, str]:
    """Return the settings that lead the played providers to the sandbox at `port`."""
    found = {"EMAIL_PROVIDERS": DEFAULT}
    keys = webhook_keys(keys_file)
    for declared in played(environ=environ):
        for name, value in declared.sandbox.items():
            found[name] = value.format(sandbox=f"http://{HOST}:{port}")
        if declared.name in keys:
            found[declared.webhook_key] = keys[declared.name]["verifies"]
    return found


def webhook_keys(path: Path) -> dict[str, dict[str, str]]:
    """Return each provider's webhook key, with what the sandbox signs with; make those that are missing.

    The file is this checkout's, for its owner only; the sandbox reads it, too.
    """
    keys: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    makers = {name: declared.make_key for name, declared in declarations().items() if declared.make_key}
    if missing := makers.keys() - keys:
        for name in sorted(missing):
            signs, verifies = makers[name]()
            keys[name] = {"signs": signs, "verifies": verifies}
        write_private(path, json.dumps(keys, indent=1))
    return keys
