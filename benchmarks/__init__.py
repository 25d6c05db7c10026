"""Measurements of a whole run and of its parts: `make bench`. Nothing else imports them."""
