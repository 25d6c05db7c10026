"""The operator's view: the first page, status, probes, jobs, pauses, tokens, and the work after a restore."""
