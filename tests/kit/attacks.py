"""What attackers type into the fields of own texts."""

from __future__ import annotations

TYPED = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a template's value": "{{ 7 * 7 }}{{ config }}",
    "a template's tag": "{% for a in range(10**9) %}x{% endfor %}",
    "a comment": "{# x #}",
    "a format": "%(x)s %(reference)s %s %d %(reference)1000000000s",
    "formats": "%" * 2000,
    "the end of a field": "</textarea></form>\"'><svg onload=alert(1)>",
    "a link that is code": "[x](javascript:alert%281%29)",
    "right to left": "abc\u202edef",
    "a line separator": "a\u2028b",
    "nothing": "\x00",
    "ten megabytes": "x" * 10_000_000,
    "attributes": "{reference.__class__.__mro__}",
    "an index": "{0}{reference[0]}",
}
#: Pieces of random texts.
LINES = (
    *("a", "ä", " ", "word ", "<", "&", '"', "%", "%(", "%s", "%%", ")", "(", "\n", "\n\n", "{reference}"),
    *("{name}", "**", "**bold** ", "[t](https://a.test)", "[t](https://a.test/?a=1&b=%41)", "*", "[", "]"),
)
