"""The base class of the API's views: tokens, strict query strings and bodies, JSON answers.

A subclass names a scope for each of its methods, a serializer for its query string and one for its body. It
reads `self.query` and `self.body()`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import unquote_to_bytes

from django.http import HttpResponse
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from runtime.database.ids import parse_uuid
from runtime.texts import CONTROL_CHARACTERS
from web.api import token_use
from web.api.correlation import CALLER
from web.api.fields import Nothing, StrictSerializer, cached_serializer
from web.api.first_read import FirstRead, read_first, recall, well_formed_key
from web.api.problem_types import FORBIDDEN, UNSUPPORTED_MEDIA_TYPE
from web.api.problems import Problem, RequestFault, invalid, length_required, malformed, not_found
from web.metrics import REQUESTS
from web.models import ApiToken
from web.proxies import client_address, is_inside


class OneFormat(BaseContentNegotiation):
    """Answers with JSON for any `Accept`. Each URL has one format."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        """Return the parser of the body's type, or None, which DRF answers with 415."""
        return next((parser for parser in parsers if _is_type(request, parser.media_type)), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


def _is_type(request: Request, media_type: str) -> bool:
    return (request.content_type or "").partition(";")[0].strip().lower() == media_type


class ApiView(APIView):
    http_method_names = ("get", "head", "post", "patch")
    content_negotiation_class = OneFormat
    scopes: ClassVar[Mapping[str, str]] = {}
    query_serializer: ClassVar[type[StrictSerializer]] = Nothing
    body_serializer: ClassVar[type[StrictSerializer]] = Nothing
    #: Whether each POST with a key ends in `answer_once`, which finds out about its token and its answer.
    may_recall_token: ClassVar[bool] = False
    #: Set after the token was read.
    first_read: FirstRead

    def perform_authentication(self, request: Request) -> None:
        """Read the token of the request, if it has one, in the first statement, or recall it."""
        super().perform_authentication(request)
        digest: Any = request.auth
        if digest is None:
            return  # `HasScope` refuses it
        self.digest: str = digest
        request.auth = token = (self._recall(request) or self.read_again()).token
        _check_network(request, token)
        token_use.note(token.id)
        request._request.META[CALLER] = token.name  # for the access log, outside of DRF

    def read_again(self) -> FirstRead:
        """Read the token, and a change's stored answer. Raise `AuthenticationFailed` for no live token."""
        is_change = self.request.method in ("POST", "PATCH")
        read = read_first(digest=self.digest, key=well_formed_key(self.request) if is_change else None)
        if read is None:
            raise AuthenticationFailed(
                "This token is unknown, expired or revoked. Ask the operator for a new one."
            )
        self.first_read = read
        return read

    def _recall(self, request: Request) -> FirstRead | None:
        """Set and return the first read without a statement, if the request needs none."""
        if not self.may_recall_token or request.method != "POST" or well_formed_key(request) is None:
            return None
        read = recall(self.digest)
        if read is not None:
            self.first_read = read
        return read

    def handle_exception(self, exc: Exception) -> Any:
        """Answer a refusal after a last look at the token: without a live one, every answer is 401."""
        response = super().handle_exception(exc)
        read: FirstRead | None = getattr(self, "first_read", None)
        if read is not None and read.is_recalled and response.status_code < 500:
            try:
                self.read_again()
            except Exception as error:  # noqa: BLE001 - it is not live any more, or the database is away
                return super().handle_exception(error)
        return response

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer as DRF does, and measure the time of the answer."""
        began = time.perf_counter()
        response = super().dispatch(request, *args, **kwargs)
        name = operation_name(type(self), request.method)
        REQUESTS.labels(name, response.status_code).observe(time.perf_counter() - began)
        return response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check token and scope, then the query string."""
        super().initial(request, *args, **kwargs)
        method = (request.method or "").lower()
        if method not in self.http_method_names or not hasattr(self, method):
            return  # DRF answers 405 next
        if "HTTP_TRANSFER_ENCODING" in request.META:
            raise length_required()
        if request.META.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
            raise Problem(
                UNSUPPORTED_MEDIA_TYPE,
                detail="Send the body as it is, without the header Content-Encoding.",
                headers={"Accept-Encoding": "identity"},  # as RFC 9110 says
            )
        self.query = self._read_query(request)

    def body(self) -> dict[str, Any]:
        """Validate and return the request's body. Raise the 400 problem if it is not valid."""
        values: dict[str, Any] = cached_serializer(self.body_serializer).run_validation(
            dict(self.request.data)
        )
        return values

    def _read_query(self, request: Request) -> dict[str, Any]:
        sent = request.META.get("QUERY_STRING", "")
        try:
            unquote_to_bytes(sent).decode()
        except UnicodeDecodeError:
            raise malformed("The query string is not UTF-8. Encode it as UTF-8, then as %XX.") from None
        values_of = dict(request.query_params.lists()) if sent else {}
        faults = [
            RequestFault((key,), "Give this once.", "query")
            for key, values in values_of.items()
            if len(values) > 1
        ]
        faults += [
            RequestFault((key,), "Control characters are not allowed.", "query")
            for key, values in values_of.items()
            if any(CONTROL_CHARACTERS.search(text) for text in (key, *values))
        ]
        if faults:
            raise invalid(faults)
        single = {key: values[0] for key, values in values_of.items()}
        try:
            checked: dict[str, Any] = cached_serializer(self.query_serializer).run_validation(single)
        except ValidationError as error:
            texts_of: Any = error.detail
            raise invalid(
                RequestFault((key,), str(texts[0]), "query") for key, texts in texts_of.items()
            ) from None
        return checked


def _check_network(request: Request, token: ApiToken) -> None:
    """Raise the 403 problem for a token that is not taken from the client's address."""
    if not token.networks or is_inside(client_address(request), token.networks):
        return
    raise Problem(FORBIDDEN, detail="This token is not taken from your address.")


_renderer = JSONRenderer()


def operation_name(view: type[ApiView], method: str) -> str:
    """Return an operation's name in the OpenAPI document, or `other` for a method that the view lacks."""
    name = {"HEAD": "get", "GET": "get", "POST": "post", "PATCH": "patch"}.get(method, "")
    return str(getattr(getattr(view, name, None), "operation_name", "other"))


def path_id(text: str) -> uuid.UUID:
    """Parse an id in a path. Raise the 404 problem for anything but a UUID."""
    value = parse_uuid(text)
    if value is None:
        raise not_found(NOT_AN_ID)
    return value


NOT_AN_ID = (
    "This is not an id: ids are UUIDs, such as the id in an order's answer. To find an order by your own"
    " number, use GET /api/v1/orders?reference=A-1001."
)
NO_SUCH_ID = "Unknown id. Use the id of a stored row that this token can see."


def present(serializer: type[Serializer[Any]], row: Any) -> Any:
    """Return a row as its serializer renders it."""
    return cached_serializer(serializer).to_representation(row)


def json_response(data: Any, *, status: int = 200, location: str = "") -> HttpResponse:
    """Return the rendered answer, which can be stored exactly as it is sent."""
    response = HttpResponse(_renderer.render(data), "application/json", status)
    if location:
        response.headers["Location"] = location
    return response
