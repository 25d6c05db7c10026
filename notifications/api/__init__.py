"""The REST API of e-mails: list, get, resend. Only config.urls imports it."""
