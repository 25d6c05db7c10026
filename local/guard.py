"""Run a program that exits with its parent, so that a local run leaves no process behind. Linux only.

    python -I -S guard.py [--signal N] [--parent PID] [--account namespace|nobody] [--nice N]
        PROGRAM [ARGUMENT ...]

The guard tells the kernel to send a signal to its process when the parent dies for any reason, and then
executes the program. That setting survives exec but not a change of user, so the guard changes the user
first. The program finds its process id in GUARD_PID, and can pass it as `--parent` to the programs that it
starts.

`local` and the tests' servers start every program through it, by path. It imports only the standard library,
so it costs a few hundredths of a second.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
NOBODY = 65534

libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 (pathlib would double the start-up time)
        file.write(text)


def become(account: str) -> None:
    """Give up root's identity.

    In a namespace the process can still access every file. As nobody it can access only files open to all.
    """
    if account == "namespace":
        uid, gid = os.geteuid(), os.getegid()
        _call("unshare", CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
        _write("/proc/self/gid_map", f"{NOBODY} {gid} 1")
    elif account == "nobody":
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def end_with_parent(*, parent: int, number: int) -> None:
    """Make the kernel send signal `number` to this process when process `parent`, its parent, dies.

    Exit at once if the parent is dead already.
    """
    _call("prctl", PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the call
        sys.exit("guard.py: the parent is gone already")


def main() -> None:
    """Parse the arguments, tie this process to its parent, and execute the program."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="guard.py")
    parser.add_argument("--signal", type=int, default=int(signal.SIGTERM))
    parser.add_argument("--parent", type=int, default=parent)
    parser.add_argument("--account", choices=["self", "namespace", "nobody"], default="self")
    parser.add_argument("--nice", type=int, default=0, help="the niceness to add, 0 to 19")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.program:
        parser.error("no program given")
    try:
        os.nice(options.nice)
        become(options.account)
        end_with_parent(parent=options.parent, number=options.signal)
        os.environ["GUARD_PID"] = str(os.getpid())
        os.execvp(options.program[0], options.program)  # noqa: S606 (that is its purpose)
    except OSError as error:
        sys.exit(f"guard.py: {options.program[0]} cannot be started: {error}")


if __name__ == "__main__":
    main()
