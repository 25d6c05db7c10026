"""The ways into the admin: passwords with a second factor, OpenID Connect, sessions (docs/adr/0060)."""
