"""The JSON Schemas of events and commands, their rules, and the pages that serve them."""
