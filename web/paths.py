"""Mask the paths that have a secret in them: /connect/<source>/<secret of the installation>/manifest."""

from __future__ import annotations

import re

#: What comes before the secret, and the secret. A text without `BEFORE_SECRET` has none.
SECRET_IN_PATH = re.compile(r"(/connect/[^/\s?#\"'\\]+/)[^/\s?#\"'\\]+")
BEFORE_SECRET = "/connect/"  # noqa: S105 - no secret


def mask_path(path: str) -> str:
    """Return a path without its secret.

    >>> mask_path("/connect/tea-shop/s3cret/posts")
    '/connect/tea-shop/***/posts'
    """
    return SECRET_IN_PATH.sub(r"\1***", path)
