"""Delivery of due rows: claim them, send them in threads, write the outcomes. It imports no e-mail.

`drain` is the loop and `sender` what an app must bring; `rows` has the rows' states and statements, `gate`
says who may send now. The delivery package of an app imports it.
"""
