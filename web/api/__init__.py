"""Parts of the REST APIs of all apps: tokens, idempotency keys, strict bodies, problems, paging, OpenAPI.

It has many modules, since each one is a part of the HTTP contract. Start with `views` (the base class),
`first_read` (who asks?), `idempotency` (work once for each key) and `problems` (every error).
"""
