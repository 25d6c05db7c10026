"""The API and the webhooks under requests that a machine makes up from the API's own document.

`FUZZ_EXAMPLES=700 make test TESTS=tests/api/test_fuzz.py` for more than the few of every run.
"""

from __future__ import annotations

import json
import os
import random

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.python._constants.orchestrator import make_constants_value_source
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.kit.api import make_token, row_counts
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.words import declarations

pytestmark = pytest.mark.django_db(transaction=True)
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
#: The answers to a request that is valid by the document. No schema can say that an Idempotency-Key was used
#: before (schemathesis repeats the same one) or that an event cannot be used. Both are a 422.
ACCEPTED = ["2xx", "404", "409", "422"]
#: Refusals of requests whose values do not fit each other, which no schema can say.
NO_SCHEMA_SAYS = [b"The items and charges give", b"It is more than a year before the order"]
#: Which names exist is a matter of the machine's time zones.
NO_SCHEMA_SAYS += [b"This is not the IANA name of a time zone"]
CONFIG = {"checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}}
schema = schemathesis.openapi.from_wsgi(
    "/api/schema", get_wsgi_application(), config=schemathesis.Config.from_dict(CONFIG)
)
OPERATIONS = [
    f"{method.upper()} {path}" for path, item in schema.raw_schema["paths"].items() for method in item
]
quiet = settings(
    max_examples=EXAMPLES,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def there(transactional_db):
    """Something that ids can hit, and a token."""
    ids = [make_order(status=status).id for status in ("pending", "pending", "pending")]
    ids += [make_mail(status=status).id for status in ("dead_lettered", "sent", "pending")]
    # As Django's own client does: the requests run on the test's connection.
    request_started.disconnect(close_old_connections)
    request_finished.disconnect(close_old_connections)
    yield {"token": make_token(), "ids": ids, "chance": random.Random(1)}
    request_started.connect(close_old_connections)
    request_finished.connect(close_old_connections)


def check_answer(case, there, checks=None):
    """Send the request, mostly with an id that exists, and run the checks, or all of schemathesis'."""
    if case.path_parameters and there["chance"].random() < 0.7:
        case.path_parameters["id"] = str(there["chance"].choice(there["ids"]))
    before = there.pop("counts", None) or row_counts()  # of the request before, if it was refused
    headers = {"Authorization": f"Bearer {there['token']}"}
    response = case.call(headers=headers)
    if response.status_code >= 400:
        there["counts"] = row_counts()
        assert there["counts"] == before
    if any(refusal in response.content for refusal in NO_SCHEMA_SAYS):
        return
    case.validate_response(response, checks=checks, headers=headers, transport_kwargs={"headers": headers})


def try_requests(operation, there, *, phases, checks=None):
    """Make up requests of an operation, and check their answers.

    `schema.parametrize()` would do it while the tests are collected, in each process of a parallel run.
    """

    @settings(quiet, phases=phases)
    def check(case):
        check_answer(case, there, checks)

    load_all_checks()
    build_operation_test(
        config=schema.config,
        operation=schema.find_operation_by_label(operation),
        test_func=check,
        given_kwargs={},
        feedback=FeedbackSources(constants_value_source=make_constants_value_source(schema)),
    )()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_api_accepts_what_the_document_allows_and_refuses_what_it_forbids(operation, there):
    try_requests(operation, there, phases=[Phase.explicit])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_answer_is_what_the_document_says_and_a_refused_request_changes_nothing(operation, there):
    try_requests(operation, there, phases=[Phase.generate, Phase.shrink], checks=CHECKS)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "event": st.sampled_from(["delivered", "bounce", "dropped", "processed", "spamreport", "x", ""]),
            "email": st.text(max_size=30),
        },
        optional={
            "timestamp": st.one_of(st.integers(), st.floats(), st.text(max_size=5)),
            "notification_id": st.one_of(st.uuids().map(str), st.text(max_size=40), st.integers()),
            "sg_event_id": st.text(max_size=10),
            "sg_message_id": st.text(max_size=20),
            "type": st.sampled_from(["bounce", "blocked", ""]),
            "reason": ANYTHING,
        },
    ),
    max_size=5,
)


@pytest.mark.parametrize("provider", [name for name, declared in declarations().items() if declared.webhook])
@quiet
@given(body=st.one_of(EVENTS.map(json.dumps), ANYTHING.map(json.dumps), st.binary(max_size=200)))
def test_a_webhook_never_fails_whatever_is_posted(db, settings, provider, body):
    settings.EMAIL_PROVIDERS, settings.WEBHOOKS_UNSIGNED = [provider], True
    client = Client(raise_request_exception=False)
    before = row_counts()
    answer = client.post(f"/webhooks/{provider}", body, content_type="application/json")
    assert answer.status_code < 500, (answer.status_code, answer.content)
    if answer.status_code >= 400:
        assert row_counts() == before
