"""`ENGINE = "outbox.core.postgres"` of release 0.1.0. Nothing else imports it; removed in 0.3."""
