"""Events of other services, each processed once: read, processed, acknowledged, kept if it fails.

The consumer's commands and the apps' handlers import it.
"""
