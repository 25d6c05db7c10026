"""Hypothesis' strategies for addresses, and for texts that are almost addresses."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from tests.kit.words import NotAnAddress, read_address

_ATOM = st.text("abzABZ019!#$%&'*+-/=?^_`{|}~", min_size=1, max_size=24)
_LDH = st.text("abzABZ019-", min_size=1, max_size=63)
_UNICODE = st.text("aB1-ßäÄẞé\u0301日本語अआाआ्иіαςאבعя٣\u200c\u200d\u00ad❤😀_・·ｅ", min_size=1, max_size=20)
_LABEL = _LDH | _UNICODE | st.sampled_from(["xn--exmple-cua", "xn--", "xn--a", "ab--cd", "x" * 63, "x" * 64])
_TOP = st.sampled_from(
    ["com", "Test", "co.uk", "xn--p1ai", "рф", "भारत", "中国", "museum", "c", "123", "a1", ""]
)
_LOCAL = st.lists(_ATOM, min_size=1, max_size=4).map(".".join)
_DOMAIN = st.builds(
    lambda labels, top, dot: dot.join([*labels, top]),
    st.lists(_LABEL, min_size=1, max_size=4),
    _TOP,
    st.sampled_from([".", ".", ".", "。", "．"]),
)
_WRONG_LOCAL = st.text("ab.@\"'\\ <>(),:;[]=?\t\nä", max_size=8)

#: Each is an address or almost one.
NEAR_MISSES = st.builds(
    lambda local, domain, end: f"{local}@{domain}{end}",
    _LOCAL | _LOCAL | _WRONG_LOCAL,
    _DOMAIN | st.sampled_from(["localhost", "[127.0.0.1]", "1.2.3.4", "example.com"]),
    st.sampled_from(["", "", "", ".", " ", "\n", ">", "\u200b"]),
)


#: Hardly one of these is refused. Of near misses alone, Hypothesis would draw too few that are accepted.
_PLAUSIBLE = st.builds(
    lambda local, labels, top: f"{'.'.join(local)}@{'.'.join([*labels, top])}",
    st.lists(_ATOM, min_size=1, max_size=2),
    st.lists(
        st.text("abzABZ019", min_size=1, max_size=40)
        | st.sampled_from(["xn--exmple-cua", "bücher", "日本語"]),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["com", "Test", "co.uk", "xn--p1ai", "рф", "भारत", "中国", "museum"]),
)


@st.composite
def _accepted(draw):
    text = draw(_PLAUSIBLE | _PLAUSIBLE | _PLAUSIBLE | NEAR_MISSES)
    try:
        read_address(text)
    except NotAnAddress:
        assume(False)
    return text


#: Addresses that are accepted.
ACCEPTED = _accepted()
