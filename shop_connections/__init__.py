"""Shops that connect themselves: their platform's own webhooks become the events of their orders.

A post is stored (`receive`) before it is understood. A worker translates the posts of a connection in the
order of their arrival, and processes the events as if the shop had sent them (`posts`). `translation` says
what a platform's folder has to offer.
"""
