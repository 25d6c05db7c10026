"""Messages from the broker: events of other services, each with one effect.

`inbox` records processed events. The consumer's command and the handlers of the apps import it.
"""
