"""The OpenAPI document at /api/schema: the common parts of all operations, and the views."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from django.http import HttpResponse
from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer2
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.views import APIView

from web.api.fields import StrictSerializer
from web.api.problems import CONTENT_TYPE
from web.api.views import OneFormat

Method = TypeVar("Method", bound=Callable[..., Any])

_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    OpenApiParameter.HEADER,
    description="1 to 255 visible ASCII characters. The work is done once for a key, and its answer is kept"
    " for 7 days. The same request gets that answer again, with `Idempotency-Replayed: true`.",
)
_CORRELATION = OpenApiParameter(
    "X-Correlation-ID",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="At most 128 of `A-Za-z0-9._-`. It is kept with every effect of the request. Generated if"
    " missing.",
)


class FaultSerializer(serializers.Serializer[Any]):
    """One fault of a request."""

    pointer = serializers.CharField(help_text="RFC 6901 pointer as a URI fragment: `#/items/0/quantity`")
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457's problem details. Some kinds have further members."""

    type = serializers.CharField(help_text="`urn:orderpost:problem:` and the kind's name")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    help = serializers.CharField(help_text="The address of a page about the type, for people")


class ValidationProblemSerializer(ProblemSerializer):
    """RFC 9457's problem details of an invalid request."""

    errors = FaultSerializer(many=True)  # type: ignore[assignment] # the field hides a property of DRF's


_PROBLEMS = {
    400: "Not valid; nothing was changed",
    401: "No valid token",
    403: "The token lacks the scope",
    404: "Not found",
    409: "Not possible in the current state",
    411: "Sent in chunks, without a length",
    413: "More than 1 MB",
    415: "Not JSON, or with Content-Encoding",
    422: "The Idempotency-Key was used for another request",
    429: "More requests per second than API_RATE_LIMIT allows; retry after Retry-After seconds",
    503: "The machine is overloaded, or the database does not answer; retry after Retry-After seconds",
}


class PageSerializer(serializers.Serializer[Any]):
    """A page of a list. A subclass adds `results`."""

    next = serializers.URLField(allow_null=True, help_text="The rows after these")
    previous = serializers.URLField(allow_null=True, help_text="The rows before these")


class HotPageSerializer(PageSerializer):
    """A page of a partitioned table's rows."""

    since = serializers.DateTimeField(
        allow_null=True, help_text="The list has rows since this time. Older ones are archived."
    )


def operation(
    *,
    name: str,
    summary: str,
    scope: str,
    answer: Any,
    status: int = 200,
    query: type[StrictSerializer] | None = None,
    body: Any = None,
    has_body: bool = False,
    has_key: bool = True,
    ids: Sequence[str] = (),
    more: str = "",
    unprocessable: str = "",
    conflict: type[serializers.Serializer[Any]] = ProblemSerializer,
    example: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
) -> Callable[[Method], Method]:
    """Describe a view's method. `has_body` means that it changes rows (POST, PATCH).

    `ids` names those in its path. `more` continues the description, in Markdown, and `unprocessable` says
    what a 422 means.
    """
    codes = [400, 401, 403, 429, 503] + ([404] if ids else [])
    codes += [411, 413, 415, 422] if has_body else []
    codes += [409] if has_body and has_key else []
    responses: dict[Any, Any] = {status: OpenApiResponse(answer)}
    for code in sorted(codes):
        kind = {400: ValidationProblemSerializer, 409: conflict}.get(code, ProblemSerializer)
        said = unprocessable if code == 422 and unprocessable else _PROBLEMS[code]
        responses[code, CONTENT_TYPE] = OpenApiResponse(kind, said)
    parameters = _common_parameters(status=status, has_key=has_body and has_key, ids=ids)
    if query:
        parameters.append(query)
    examples = [OpenApiExample("Example", value=dict(example), request_only=True)] if example else []
    describe: Callable[[Method], Method] = extend_schema(
        operation_id=name,
        summary=summary,
        description=f"Scope: `{scope}`.\n\n{more}".strip(),
        parameters=parameters,
        request=body,
        responses=responses,
        examples=examples,
        tags=list(tags),
    )

    def decorate(method: Method) -> Method:
        method.operation_name = name  # type: ignore[attr-defined]  # for web.api.views.operation_name
        return describe(method)

    return decorate


def _common_parameters(*, status: int, has_key: bool, ids: Sequence[str]) -> list[Any]:
    """Return the parameters that many operations share, and the headers of their answers."""
    parameters = [_CORRELATION, _answer_header("X-Correlation-ID", "The given id, or a generated one", None)]
    parameters += [OpenApiParameter(name, OpenApiTypes.UUID, OpenApiParameter.PATH) for name in ids]
    if has_key:
        parameters += [
            _KEY,
            _answer_header("Idempotency-Replayed", "`true` if this is a stored answer", [status]),
        ]
    if status == 201:
        parameters.append(_answer_header("Location", "The path of the created resource", [201]))
    return parameters


def _answer_header(name: str, description: str, codes: list[int] | None) -> OpenApiParameter:
    return OpenApiParameter(
        name, OpenApiTypes.STR, OpenApiParameter.HEADER, description=description, response=codes or True
    )


class _TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The security scheme of API tokens. drf-spectacular registers the class automatically."""

    target_class = "web.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of `manage.py tokens create`. Each operation names the scope it needs.",
        }


class ClosedBody(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Adds to the schema of a body that it refuses other members, and too many entries of a list."""

    target_class: Any = StrictSerializer
    match_subclasses = True
    priority = -1  # after an extension for one body

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        made: dict[str, Any] = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        for name, field in self.target.fields.items():
            if isinstance(field, serializers.ListSerializer):
                listed: Any = field  # the stubs do not know the sizes
                sizes = {"minItems": listed.min_length, "maxItems": listed.max_length}
                made["properties"][name] |= {key: size for key, size in sizes.items() if size is not None}
        return made | {"additionalProperties": False}


_building = threading.Lock()
_document = b""


def _built() -> bytes:
    """Return the document. The first call of this process builds it.

    Building takes 0.1 to 1.5 s of CPU, and the path needs no token. Without the cache anybody could use up
    the CPU.
    """
    global _document
    with _building:
        if not _document:
            schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
            _document = OpenApiJsonRenderer2().render(schema, renderer_context={})
    return _document


class SchemaView(APIView):
    """Serves the OpenAPI document as JSON, without a token and for any query string."""

    authentication_classes = []
    permission_classes = []
    content_negotiation_class = OneFormat

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        disposition = {"Content-Disposition": 'inline; filename="orderpost.json"'}
        return HttpResponse(_built(), "application/json", headers=disposition)


class DocsView(SpectacularSwaggerSplitView):
    """Serves the API reference without resources of other servers."""

    content_negotiation_class = OneFormat
