"""Two features that change the same rows, one after the other or at once: docs/testing.md lists the pairs."""
