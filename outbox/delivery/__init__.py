"""Claim due rows, send them in threads, and write the outcomes. This package knows nothing of e-mail.

`drain` is the loop, and `sender` is the protocol that an app implements. `rows` has the states and the
statements of rows. `gate` has the circuit breakers and the rate limit.
"""
