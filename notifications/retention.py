"""The retention rules of `email_notifications`."""

from __future__ import annotations

from notifications.states.transitions import DUE_STATES, Status, list_in_sql
from retention.partitioned import RetentionRules
from runtime.personal_data import ERASED, ERASED_ADDRESS

EMAIL_RETENTION = RetentionRules(
    interval="month",
    unfinished={
        " or ".join(DUE_STATES): f"status IN ({list_in_sql(DUE_STATES)})",
        "processing": f"status = '{Status.PROCESSING}'",
        "dead-lettered": f"status = '{Status.DEAD_LETTERED}'",
    },
    unfinished_help="Resend them or give them up, in the admin or by POST /notifications/{id}/resend.",
    owner_column="order_id",
    # A shop copy is also its customer's. Its content is about them.
    address_columns=("recipient_email", "customer_email"),
    unaddressed="recipient_email = '' OR shop_copy_of IS NOT NULL AND customer_email = ''",
    # Leave a row that is being sent to a second pass. Settling would write its errors again.
    personal=f"recipient_email <> '{ERASED_ADDRESS}' AND status <> '{Status.PROCESSING}'",
    erased={
        "recipient_email": f"'{ERASED_ADDRESS}'",
        "customer_email": f"CASE WHEN customer_email = '' THEN '' ELSE '{ERASED_ADDRESS}' END",
        "to_name": "''",
        "subject": f"'{ERASED}'",
        "body": "''",
        "body_text": "''",
        # A provider's text may repeat the address in any spelling. Keep time, provider and code.
        "last_error": f"CASE WHEN last_error = '' THEN '' ELSE '{ERASED}' END",
        "errors": "(SELECT coalesce(jsonb_agg(one || "  # noqa: S608 - only a constant is inserted
        f"jsonb_build_object('text', '{ERASED}') ORDER BY n), '[]')"
        " FROM jsonb_array_elements(errors) WITH ORDINALITY AS each (one, n))",
        "bounce_text": "''",
        "updated_at": "statement_timestamp()",
    },
)
