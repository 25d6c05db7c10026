"""Saleor: an app of the shop, installed by its manifest's address.

Saleor posts an event, with the order as the app's query asks for it. The events differ from the order's state
in one thing alone: whether the customer is to hear of a parcel.
"""
