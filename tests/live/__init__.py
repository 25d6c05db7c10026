"""Sends to real providers, at their own test addresses. Skipped without their keys."""
