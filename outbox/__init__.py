"""Due e-mails leave here: poll, claim, screen, send, settle, and the gate of breakers and rate limit.

Only operations, config and local import it. It and orders do not import each other, because they meet only
in the table `email_notifications`. Each module is one step of an e-mail, or a trigger. Django, Celery and
operations find apps, admin, tasks, metrics and sums by their names.
"""
