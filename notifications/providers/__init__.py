"""The e-mail providers. Each has a folder, which sends, interprets the answers and reads the webhook.

`registry` lists the providers; `sending` creates the objects that send. Only this package imports anymail.
"""
