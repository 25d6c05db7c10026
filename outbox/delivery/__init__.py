"""The parts of delivery that use no table: values and the gate. `notifications.delivery` sends e-mails.

`rows` has the states and outcomes of rows. `gate` has the circuit breakers and the rate limit.
"""
