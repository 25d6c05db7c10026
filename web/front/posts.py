"""The paths to which strangers post what they prove by a signature: webhooks of shops and of providers.

An app adds its own next to their URL.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class SignedPosts:
    """Posts to paths with a prefix.

    name_of        returns whose places a post takes, by the rest of the path
    may_be_signed  returns whether the headers of a post could be those of a signed one; the view refuses the
                   others without their body
    """

    prefix: str
    name_of: Callable[[str], str]
    may_be_signed: Callable[[str, Mapping[str, str]], bool]


#: Those of all apps.
SIGNED_POSTS: list[SignedPosts] = []


def register_signed_posts(posts: SignedPosts) -> None:
    SIGNED_POSTS.append(posts)
