"""Delivery of due rows: claim them, send them in threads, write the outcomes. Knows no e-mail.

`drain` is the loop and `sender` what an app must bring. `rows` is everything about one row in the database,
`gate` who may send now. An app's delivery package imports it; models import `rows`.
"""
