"""From a due e-mail to a provider, in this process. Every trigger ends in a function of `drain`.

Tasks, commands, webhooks and the admin import it.
"""
