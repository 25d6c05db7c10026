"""Who may come into the admin: passwords with a second factor, OpenID Connect, sessions (docs/adr/0060)."""
