"""Shops that connect themselves: their platform's own webhooks change the orders here.

A post is stored (`receive`) before it is understood. A worker takes the posts of a connection in the order of
their arrival (`process`), compares each with the order here (`changes`), and saves what it finds (`apply`).
`platforms` says what a platform's folder has to offer.
"""
