"""The mail that all benchmarks send: 4 kB, as an order's is."""

SUBJECT = "We have received your payment for order A-1001"
_LINE = "Thank you. On 21 November 2026 we received your payment of €42.00 for your order A-1001. "
TEXT = _LINE * 8
HTML = "<html><body>" + f"<p>{_LINE}</p>" * 33 + "</body></html>"
