"""`manage.py health [ROLE]`, for a container's probe. manage.py calls `main` without starting Django."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from runtime.telemetry import health


class Command(BaseCommand):
    help = "Exit with 0 if this machine's process of the role is healthy, else with 1 and the reason."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("role", nargs="*", help="as in `orderpost ROLE` (default: all that have begun)")

    def handle(self, *args: Any, role: list[str], **options: Any) -> None:
        sys.exit(health.main(role))
