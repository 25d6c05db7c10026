"""A rollover while customers buy: old partitions are detached, and the archive has each of their rows."""

from __future__ import annotations

import subprocess

from tests.chaos.world import World

#: E-mails of an old month, and the age of the first one, in months. Each rollover takes an older one.
ROWS, OLD = 500, 26
TRIES = 5


def rollover(world: World) -> str:
    """Make an old month of e-mails and an old day of events, and run the rollover that detaches them."""
    back = OLD + len(world.months)
    code = f"from tests.chaos.rollovers import make_old_partitions as make; make(back={back})"
    made = _manage(world, "shell", "--verbosity", "0", "-c", code)
    if not made:
        return "no old month"
    month, day = made.split()[-2:]
    world.months.append(month)
    _manage(world, "partitions", "rollover")
    attached = "SELECT 1 FROM pg_inherits WHERE inhrelid IN (to_regclass('%s'), to_regclass('%s'))"
    if world.shop.query(attached % (month, day)):
        world.wrong.append(f"{month} or {day} is still attached after the rollover")
    return f"{month} and {day}"


def _manage(world: World, *arguments: str) -> str:
    """Run a command, and repeat it, because a lock may be held for longer than the command waits for it."""
    for number in range(TRIES):
        try:
            return world.shop.manage(*arguments)
        except subprocess.CalledProcessError as error:
            failed = error
            world.some(number, number + 2)
    world.wrong.append(f"{arguments} exited with {failed.returncode} {TRIES} times: {failed.stderr[-1500:]}")
    return ""


def make_old_partitions(*, back: int) -> None:
    """Run in a process with Django: make the partitions, and print their names."""
    from django.db import transaction

    from tests.kit.months import fill, make_partition
    from tests.kit.words import DomainEvent, EmailNotification

    with transaction.atomic():
        month = make_partition(EmailNotification, back=back)
        fill(month, ROWS)
        day = make_partition(DomainEvent, back=back * 30)
    print(month.name, day.name)


def check_cold_files(world: World) -> None:
    """Restore each archived month, and find it incomplete unless it has all rows."""
    for month in world.months:
        _manage(world, "partitions", "restore", month)
        [(count,)] = world.shop.query(f"SELECT count(*) FROM {month}_restored")
        if count != ROWS:
            world.wrong.append(f"the archive of {month} has {count} rows of {ROWS}")
