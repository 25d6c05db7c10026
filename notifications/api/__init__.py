"""The REST API of e-mails."""
