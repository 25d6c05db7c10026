"""Which files a reader opens to follow one payment, e-mail, inbound event or erasure through the product.

walks.txt has the files that each enters, so that a review shows a walk that grows. CONTRIBUTING.md has the
rule.
"""

from __future__ import annotations

import re
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import pytest

from local.machine import PROJECT
from tests.kit.api import Api, make_token
from tests.kit.events import PAID, envelope, handle, received
from tests.kit.mails import make_mail, sandbox
from tests.kit.orders import place_order
from tests.kit.people import bought, erase
from tests.kit.words import drain, tasks

__all__ = ["sandbox"]
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
WALKS = Path(__file__).with_name("walks.txt")
#: Not the product, or the provider's part, which the sandbox plays in this process.
LEFT_OUT = re.compile(r"tests/|local/|\.venv/|notifications/providers/(dialect|\w+/sandbox)\.py")
ADDRESS, OTHER = "ann@example.com", "bob@example.com"


def files_entered(work: Callable[[], object]) -> set[str]:
    """Return the product's files of which a function runs in any thread, without generated code."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    names = {code.co_filename for code in codes if code.co_name != "<module>"}
    files = {Path(name) for name in names if name.startswith(f"{PROJECT}/") and "<" not in name}
    paths = {str(file.relative_to(PROJECT)) for file in files}
    return {path for path in paths if not LEFT_OUT.match(path)}


def pay() -> Callable[[], object]:
    order = place_order(user_id=uuid.uuid4(), email=ADDRESS, total_amount=1000)
    api = Api(make_token())
    return lambda: api.post(f"/api/v1/orders/{order.id}/pay", {}, key=str(uuid.uuid4()))


def inbound_event() -> Callable[[], object]:
    order = place_order(user_id=uuid.uuid4(), email=ADDRESS, total_amount=1000)
    message = received(PAID, envelope(PAID, {"orderId": str(order.id)}))
    return lambda: handle(message)


def an_email() -> Callable[[], object]:
    drain.reset()  # for sending threads that are followed
    make_mail()
    return tasks.drain_emails


def an_erasure() -> Callable[[], object]:
    bought(OTHER)
    return lambda: erase(OTHER)


USES = {"pay": pay, "e-mail": an_email, "inbound event": inbound_event, "erasure": an_erasure}


def listed() -> dict[str, set[str]]:
    """Return the files of walks.txt, by use."""
    walks = [part.splitlines() for part in WALKS.read_text().strip().split("\n\n")]
    return {title.partition(":")[0]: {file.strip() for file in files} for title, *files in walks}


def test_each_use_enters_only_files_of_walks_txt(sandbox):
    entered = {}
    for name, prepare in USES.items():
        prepare()()  # what only the first one of a process does, such as loading templates
        entered[name] = files_entered(prepare())
    text = "\n\n".join(
        "\n  ".join([f"{name}: {len(files)} files", *sorted(files)]) for name, files in entered.items()
    )
    print(text)
    new = {name: sorted(files - listed()[name]) for name, files in entered.items()}
    assert not any(new.values()), f"{new} If they are right, put the printed text into walks.txt."
