"""The e-mail providers: a folder each, with how to send, what the answers mean, and how to read its webhook.

`registry` lists them, `sending` makes the objects that send. Anymail is imported in this package alone.
"""
