"""In front of Django: who asks, who may send a body, and who waits (docs/adr/0049).

Granian hands over a request when its headers are here, and its body is read only if `Front` asks for it. So a
stranger, which is every caller without a live token or session, holds no thread and no slot while it sends.
"""
