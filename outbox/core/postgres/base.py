from outbox.database.postgres.base import DatabaseWrapper  # noqa: F401
