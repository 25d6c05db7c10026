"""Due e-mails leave here: poll, claim, screen, send, settle, and the gate of breakers and rate limit.

Start with `drain`. Each other module is one step of an e-mail, or a trigger. The sender and `orders`, which
writes e-mails, meet only in the table `email_notifications`.
"""
