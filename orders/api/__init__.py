"""The REST API of orders."""
