#!/usr/bin/env python
"""Django's command line: `python manage.py help` lists what this project adds."""

import os
import signal
import sys

if __name__ == "__main__":
    if os.getpid() == 1:  # a container's first process ignores a signal that it has no handler for
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.argv[1:2] == ["health"] and not any(word.startswith("-") for word in sys.argv[2:]):
        # A container's probe calls it every few seconds, and Django takes seconds to start.
        from runtime.telemetry import health

        sys.exit(health.main(sys.argv[2:]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.exceptions import ImproperlyConfigured

    from config.help import Utility

    try:
        Utility(sys.argv).execute()
    except ImproperlyConfigured as error:
        sys.exit(str(error))
