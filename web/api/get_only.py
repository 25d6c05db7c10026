"""Endpoints outside the API that answer only GET and HEAD."""

from __future__ import annotations

import functools
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from web.api.problem_types import METHOD_NOT_ALLOWED
from web.api.problems import Problem, problem_response

Endpoint = Callable[..., HttpResponse]


def get_only(endpoint: Endpoint) -> Endpoint:
    """Answer only GET and HEAD, and answer every error with a problem."""

    @csrf_exempt
    @functools.wraps(endpoint)
    def answer(request: HttpRequest, **named: str) -> HttpResponse:
        try:
            if request.method not in ("GET", "HEAD"):
                raise Problem(
                    METHOD_NOT_ALLOWED,
                    detail="Use GET or HEAD.",
                    headers={"Allow": "GET, HEAD"},
                )
            return endpoint(request, **named)
        except Exception as error:  # noqa: BLE001 - problem_response logs unexpected errors
            return problem_response(error, {"request": request})

    return answer
