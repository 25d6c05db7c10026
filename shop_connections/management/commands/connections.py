"""`manage.py connections list|try|check`: list connections, wait for a post, and find what is missing."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils import timezone

from runtime.audit import command_actor, record
from runtime.jobs.work import waker
from runtime.models import AuditRow
from shop_connections.compare import compare_shop, repair
from shop_connections.http import ShopUnreachable
from shop_connections.models import ConnectionPost, PostState, ShopConnection
from shop_connections.process import wake

_UNITS = {"m": dt.timedelta(minutes=1), "h": dt.timedelta(hours=1), "d": dt.timedelta(days=1)}


class Command(BaseCommand):
    help = (
        "List the shops that connect themselves, wait for the next post of one, or compare its orders with "
        "those here. Connections are added in the admin."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("list", help="each connection with its state and its posts")
        attempt = verbs.add_parser("try", help="wait for the next valid post of a shop, and say what it was")
        attempt.add_argument("source", metavar="SOURCE")
        attempt.add_argument("--seconds", type=float, default=300.0, help="how long to wait (default: 300)")
        check = verbs.add_parser("check", help="read the shop's orders, and list what is missing here")
        check.add_argument("source", metavar="SOURCE")
        check.add_argument(
            "--since", default="2d", metavar="TIME", help="how far to look back: 30m, 12h, 2d (default: 2d)"
        )
        check.add_argument("--repair", action="store_true", help="process what is missing")

    def handle(self, *_: Any, verb: str, **options: Any) -> None:
        if verb == "list":
            self._list()
            return
        shop = ShopConnection.objects.filter(source=options["source"]).first()
        if shop is None:
            names = ", ".join(ShopConnection.objects.values_list("source", flat=True)) or "there is none"
            raise CommandError(f"There is no connection {options['source']}. Use one of: {names}.")
        if verb == "try":
            self._try(shop, options["seconds"])
        else:
            self._check(shop, options["since"], is_repair=options["repair"])

    def _list(self) -> None:
        for shop in ShopConnection.objects.all():
            posts = ConnectionPost.objects.filter(source=shop.source)
            words = [shop.source, shop.platform, shop.state]
            if shop.live_at:
                words.append(f"live from {shop.live_at:%Y-%m-%d %H:%M} UTC")
            words.append(
                f"last post {shop.last_post_at:%Y-%m-%d %H:%M} UTC" if shop.last_post_at else "no post"
            )
            for name, rows in (
                ("waiting", posts.waiting()),
                ("unusable", posts.unusable()),
                ("missing", posts.missing()),
            ):
                if count := rows.count():
                    words.append(f"{count} {name}")
            if shop.check_problem:
                words.append(f"not compared: {shop.check_problem}")
            if shop.left_out:
                words.append(f"{shop.left_out} too large to compare")
            self.stdout.write("  ".join(words))

    def _try(self, shop: ShopConnection, seconds: float) -> None:
        """Wait for a post that comes from now on."""
        _check_active(shop, "its posts are answered 404")
        self.stderr.write(
            f"Waiting for a post to /connect/{shop.source}. The admin says what to do in the shop."
        )
        newest = ConnectionPost.objects.filter(source=shop.source).order_by("-id")
        last = newest.values_list("id", flat=True).first()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            post = newest.first()
            if post is not None and post.id != last and post.state != PostState.WAITING:
                if post.state == PostState.UNUSABLE:
                    raise CommandError(f"A post came and cannot be used: {post.reason}")
                self.stdout.write(f"Connected: order {post.reference or '(a post about no order)'}.")
                return
            time.sleep(0.2)
        raise CommandError("No valid post came. Compare the address and the secret in the shop.")

    def _check(self, shop: ShopConnection, since: str, *, is_repair: bool) -> None:
        match = re.fullmatch(r"([1-9]\d{0,3})([mhd])", since)
        if match is None:
            raise CommandError("--since must be like 30m, 12h or 2d.")
        if is_repair:
            _check_active(shop, "nothing of it is processed")
        try:
            comparison = compare_shop(shop, since=timezone.now() - int(match[1]) * _UNITS[match[2]])
        except ShopUnreachable as problem:
            raise CommandError(str(problem)) from problem
        for missing in comparison.missing:
            owed = missing.reason or ", ".join(missing.events)
            self.stdout.write(f"{missing.reference or missing.order_id}  {owed}")
        self.stderr.write(
            f"{comparison.read} orders read, {len(comparison.missing)} missing or different here."
        )
        if not comparison.is_whole:
            self.stderr.write(
                "These are not all: the time was over, or no more can be stored. Process what is missing, and"
                " ask for fewer days."
            )
        if is_repair:
            with transaction.atomic():
                count = repair(source=shop.source)
                record(
                    AuditRow(
                        kind=AuditRow.Kind.CONNECTION,
                        act=f"Process {count} missing orders.",
                        source=shop.source,
                        subject_type=shop._meta.label_lower,
                        subject_id=str(shop.id),
                        subject=shop.source,
                    ),
                    by=command_actor(),
                )
            wake()
            waker.finish(seconds=5.0)  # else the wake-up ends with this process
            self.stderr.write(f"{count} are processed by a worker now.")


def _check_active(shop: ShopConnection, otherwise: str) -> None:
    if shop.state == ShopConnection.State.OFF:
        raise CommandError(
            f"{shop.source} is off, and {otherwise}. Begin a trial again on its page in the admin."
        )
