"""Fixtures for all tests of providers."""

from tests.kit.providers import provider, smtp

__all__ = ["provider", "smtp"]
