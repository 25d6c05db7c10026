"""Build the statement that claims rows, for `EmailNotificationQuerySet`."""

from __future__ import annotations

from collections.abc import Mapping

#: A claim with a lookback takes as the newest rows those that became due within this time.
FRESH_SECONDS = 5.0
#: A pause of the delivery (runtime.models.pauses) stops claims and the recovery of expired claims.
NOT_PAUSED = "NOT EXISTS (SELECT FROM pauses WHERE part = 'delivery')"
#: The columns of the state and of log lines, which settled rows have, too.
STATE = (
    "id, status, claim_token, retry_count, max_retries, errors, provider, correlation_id, traceparent,"
    " resent_at, order_id, event_type, recipient_email, to_name"
)
_RETURNED = ", ".join(f"row.{name.strip()}" for name in f"{STATE}, subject, body, body_text".split(","))
#: The CTE `picked` of `claim_untried`.
UNTRIED = f"""
    picked AS MATERIALIZED (
        SELECT id, status, next_attempt_at, 0 AS place FROM email_notifications
        WHERE status = 'pending' AND retry_count = 0 AND errors = '[]'::jsonb AND resent_at IS NULL
          AND next_attempt_at <= statement_timestamp() AND {NOT_PAUSED}
        ORDER BY next_attempt_at DESC LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    """  # noqa: S608 - only constants are inserted


def build_claim(picked: str) -> str:
    """Return the statement that moves the rows of the CTE `picked` to `processing`.

    `picked` has the columns id, status, next_attempt_at and place.
    """
    return f"""
        WITH {picked}
        UPDATE email_notifications AS row SET status = 'processing', claimed_at = statement_timestamp(),
            claim_token = %(token)s, updated_at = statement_timestamp()
        FROM picked WHERE row.id = picked.id
        RETURNING {_RETURNED}, picked.status AS was, picked.place,
            extract(epoch FROM statement_timestamp())::float8 AS claimed_epoch,
            extract(epoch FROM statement_timestamp() - picked.next_attempt_at)::float8 AS age_seconds
        """  # noqa: S608 - only constants are inserted


def longest_and_newest(
    limit: int, fresh: int, lookback_seconds: float | None
) -> tuple[str, Mapping[str, object]]:
    """Return the CTE `picked` of `EmailNotificationQuerySet.claim` with its values."""
    since = newest_since = ""
    if lookback_seconds is not None:
        since = "AND next_attempt_at >= statement_timestamp() - %(lookback)s * interval '1 second'"
        newest_since = since.replace("lookback", "newest_lookback")
    # Take rows of `newest` only if `longest` is full, because then there is a backlog. They come first in the
    # batch, so that they are sent first. MATERIALIZED locks each row once, in the given order.
    picked = f"""
        longest AS MATERIALIZED (
            SELECT id, status, next_attempt_at FROM email_notifications
            WHERE status IN ('pending', 'failed') AND next_attempt_at <= statement_timestamp() {since}
              AND {NOT_PAUSED}
            ORDER BY next_attempt_at LIMIT %(longest)s FOR UPDATE SKIP LOCKED
        ), newest AS MATERIALIZED (
            SELECT id, status, next_attempt_at FROM email_notifications
            WHERE status = 'pending' AND retry_count = 0
              AND next_attempt_at <= statement_timestamp() {newest_since} AND {NOT_PAUSED}
              AND (SELECT count(*) FROM longest) = %(longest)s AND id NOT IN (SELECT id FROM longest)
            ORDER BY next_attempt_at DESC LIMIT %(fresh)s FOR UPDATE SKIP LOCKED
        ), picked AS (
            SELECT *, row_number() OVER () AS place
            FROM (
                (SELECT * FROM newest)
                UNION ALL
                (SELECT * FROM longest LIMIT %(limit)s - (SELECT count(*) FROM newest))
            ) AS both_parts
        )
        """  # noqa: S608
    return picked, {
        "limit": limit,
        "longest": limit - fresh if lookback_seconds is None else limit,
        "fresh": fresh,
        "lookback": lookback_seconds,
        "newest_lookback": min(FRESH_SECONDS, lookback_seconds or 0.0),
    }
