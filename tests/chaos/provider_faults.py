"""The faults of the providers. tests.chaos.run calls them like those of tests.chaos.faults."""

from __future__ import annotations

from local.sandbox.faults import Kind
from tests.chaos.world import SMTP_DELAY, World
from tests.kit.customers import POISON


def provider(world: World) -> str:
    kind, options = world.chance.choice(
        [
            ("status", {"status": 503}),
            ("status", {"status": 500, "probability": 0.5}),
            ("status", {"status": 429, "headers": {"Retry-After": "2"}}),
            ("slow", {"seconds": 1.0}),
            ("hang", {"seconds": 4.0, "probability": 0.3}),
            ("reset", {"probability": 0.5}),
            ("accept_then_reset", {"probability": 0.3}),
            ("accept_then_hang", {"seconds": 4.0, "probability": 0.3}),
            ("refuse", {"seconds": 3.0}),
        ]
    )
    world.shop.sandbox.fail(kind=kind, **options)  # type: ignore[arg-type]
    world.some(2, 6)
    world.shop.sandbox.heal()
    return f"{kind} {options}"


def brown_out(world: World) -> str:
    world.shop.sandbox.fail(kind="status", status=500, probability=0.35)
    world.some(8, 15)
    world.shop.sandbox.heal()
    return "35 % of all sends answered 500"


def poisonous_recipients(world: World) -> str:
    world.shop.sandbox.fail(kind="status", status=503, to=POISON)
    world.some(8, 15)
    world.shop.sandbox.heal()
    return "503 for some recipients"


def slow_smtp(world: World) -> str:
    before = world.smtp.accepted
    for name in world.providers:
        if name != "smtp":
            world.shop.sandbox.fail(kind="status", status=503, provider=name)
    with world.listening_smtp():
        world.some(12, 20)
        world.shop.sandbox.heal()
        world.some(5, 6)  # wait for sends in flight
    return f"{SMTP_DELAY:g} s for each reply, {world.smtp.accepted - before} mails taken"


def accepted_then_504(world: World) -> str:
    share = world.chance.choice([0.3, 1.0])
    world.shop.sandbox.fail(kind="accept_then_status", status=504, probability=share)
    world.some(3, 8)
    world.shop.sandbox.heal()
    return f"{share:.0%} of all sends were taken and answered 504"


def tls_garbage(world: World) -> str:
    kind: Kind = world.chance.choice(["garbage", "accept_then_garbage"])
    world.shop.sandbox.fail(kind=kind, probability=0.5)
    world.some(3, 8)
    world.shop.sandbox.heal()
    return f"{kind}: half of all requests were read and answered with a bad record"
