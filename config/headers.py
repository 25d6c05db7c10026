"""A middleware that limits what a browser may load, do and keep.

Pages load nothing from other hosts and run no inline script. All middleware except the log's is inside this
one, and refusals have the headers, too. It keeps a view's own policy, such as that of the e-mail preview.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

_IMAGES = "img-src 'self' data:"
POLICY = "; ".join(
    [
        "default-src 'self'",
        _IMAGES,  # Swagger UI's icons
        "style-src 'self' 'unsafe-inline'",  # Swagger UI's, and the admin's widths
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'self'",  # the admin frames its e-mail preview
    ]
)
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


def strict_headers(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        # The page of texts previews an e-mail in a frame that has this page's policy.
        origin = request.__dict__.get("image_origin", "")
        images = f"img-src 'self' data: {origin}" if origin else _IMAGES
        response.headers.setdefault("Content-Security-Policy", POLICY.replace(_IMAGES, images))
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        # Nearly every answer is about one shop's customers. WhiteNoise says how long a file may be kept.
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return answer
