"""`python -m local`, the command of `make run`: run all of orderpost on this machine until Ctrl-C.

This process locks var/, starts supervisord, prepares the database, shows the logs, and stops everything in
order. If it or supervisord is killed, the kernel kills the rest (local.machine.guarded). Linux only.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from local.machine import HOST, LocalRunFailed, free_port, is_free
from local.stack import VAR, Stack


def web_port() -> int:
    """Return PORT. Raise LocalRunFailed if it is invalid or taken."""
    text = os.environ.get("PORT") or "8000"
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise LocalRunFailed(f"PORT must be a number from 1 to 65535, not {text!r}.")
    port = int(text)
    if not is_free(port=port):
        other = next((p for p in range(port + 10, 65536, 10) if is_free(port=p)), free_port())
        raise LocalRunFailed(f"Port {port} of {HOST} is taken. Choose another: PORT={other} make run")
    return port


@contextmanager
def only_one_run() -> Iterator[None]:
    """Lock var/. Raise LocalRunFailed, with the process id of the other run, if it is locked."""
    try:
        for directory in (VAR, VAR / "log", VAR / "run", VAR / "static"):
            directory.mkdir(exist_ok=True)
        lock = (VAR / "run" / "lock").open("a+")
    except PermissionError as error:
        raise LocalRunFailed(
            f"{error.filename} belongs to another user. Run as the user of the first `make run`, "
            "or remove var/ as that user."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise LocalRunFailed(
                f"This checkout runs already: {lock.read().strip()}. Stop that one first."
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}, port {os.environ.get('PORT') or 8000}\n")
        lock.flush()
        yield


def main() -> int:
    """Run the stack. Return 0 after a requested stop. Otherwise print the reason and return 1."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with only_one_run(), closing(Stack(port=web_port())) as stack:
            try:
                stack.run()
            except KeyboardInterrupt:
                with suppress(OSError):  # the terminal may be closed
                    print("\nStopping …", flush=True)
    except LocalRunFailed as error:
        print(f"\n\n{error}", file=sys.stderr, flush=True)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # the reader of our output has exited
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
