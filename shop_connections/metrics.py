"""The metric of posts of connected shops."""

from __future__ import annotations

from runtime.telemetry.metrics import counter

POSTS = counter(
    "orderpost_connection_posts",
    "posts of connected shops: `stored`, `refused` (unsigned, too large, too many, or a key is missing here),"
    " and of the stored ones `processed` or `unusable`",
    ["source", "result"],
)
