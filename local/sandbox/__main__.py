"""`python -m local.sandbox --port N`: run the sandbox as a process until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from local.sandbox.sandbox import Sandbox
from local.sandbox.webhooks import InvalidWebhookSettings, WebhookSettings


def main() -> int:
    """Serve until a signal stops it. Return the exit code: 0, or 2 if it cannot start."""
    parser = argparse.ArgumentParser(
        prog="python -m local.sandbox", description="A stand-in for the e-mail providers."
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--webhook-url", help="the URL for events; each provider adds its name")
    parser.add_argument("--webhook-keys-file", type=Path, help="the keys that local/environment.py wrote")
    parser.add_argument("--keep-in", type=Path, help="the file that keeps the e-mails over a restart")
    options = parser.parse_args()

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        file: Path | None = options.webhook_keys_file
        keys = {name: key["signs"] for name, key in json.loads(file.read_text()).items()} if file else {}
        sandbox = Sandbox(port=options.port)
        if options.webhook_url:
            sandbox.webhooks.settings = WebhookSettings(url=options.webhook_url, keys=keys)
        if options.keep_in:
            sandbox.mailbox.keep_in(options.keep_in)
        sandbox.start()
    except (OSError, InvalidWebhookSettings) as error:
        print(f"The mailbox cannot start on port {options.port}: {error}", file=sys.stderr)
        return 2
    print(f"Mailbox: {sandbox.url}", flush=True)
    stop.wait()
    sandbox.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
