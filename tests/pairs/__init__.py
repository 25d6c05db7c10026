"""Two features that change the same rows, one after the other or at once. README.md lists the pairs."""
