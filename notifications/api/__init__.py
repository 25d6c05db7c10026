"""The REST API of e-mails. config.urls imports it, and orders.api the form of an e-mail."""
