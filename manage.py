#!/usr/bin/env python
"""Django's command line."""

import os
import select
import signal
import sys


def is_read() -> bool:
    """Return False if stdout is a pipe whose reader has ended, as after `| head`."""
    watch = select.poll()
    watch.register(sys.stdout, 0)
    return not any(state & select.POLLERR for _, state in watch.poll(0))


if __name__ == "__main__":
    if os.getpid() == 1:  # a container's first process ignores a signal that it has no handler for
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if sys.argv[1:2] == ["health"] and not any(word.startswith("-") for word in sys.argv[2:]):
        # A container's probe calls it every few seconds, and Django takes seconds to start.
        from runtime.telemetry import health

        sys.exit(health.main(sys.argv[2:]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
        if sys.stdout:
            sys.stdout.flush()
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    except BrokenPipeError:
        if is_read():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush of the exit
        sys.exit(1)
