"""Orders: their states, the events and e-mails of each change, and what a person can do with an order.

`services` has every change of an order, and `models` its table. The API, the admin, the commands and the
inbound events (`inbound`) all call `services`. `fields` declares each column once, `events` and `emails` say
what a change sends, and `privacy` exports and erases a person.
"""
