"""Send due e-mails to the providers from this process. Every task and command calls a function of `drain`.

Imported by the other modules of notifications and by config.
"""
