"""Parts of the REST APIs of all apps: tokens, idempotency keys, strict bodies, problems, paging, OpenAPI.

The apps' APIs, webhooks and admin forms import it, and so do handlers that read events like API requests. It
has many modules, because each one is a part of the HTTP contract.
"""
