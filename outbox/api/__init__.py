"""What the REST APIs of all apps share: tokens, idempotency keys, strict bodies, problems, paging, OpenAPI.

The apps' `api` folders import it. It has fourteen modules, because each is one part of the HTTP contract.
"""
