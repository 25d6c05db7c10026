"""Tests of what the suite itself is made of."""
