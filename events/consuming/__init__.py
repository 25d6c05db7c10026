"""Messages from the broker: events of other services, each processed once.

`consumer` is the loop of the process, `inbox` processes one event, and `envelope` reads it. `bodies` and
`cloudevents` read the same events from requests.
"""
