"""The commands of an operator: status, pauses, tokens, health, restores."""
