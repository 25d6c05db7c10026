"""The REST API of orders. Only config.urls imports it."""
