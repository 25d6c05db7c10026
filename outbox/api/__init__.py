"""What the REST APIs of all apps share: tokens, idempotency keys, strict bodies, problems, paging, OpenAPI.

The apps' APIs, webhooks and admin forms import it, and so does what reads events as the API reads requests.
It has fourteen modules, because each is one part of the HTTP contract.
"""
