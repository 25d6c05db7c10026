"""Getting e-mails out of this process. Every trigger ends in `drain.drain_emails` or `drain.poll`."""
