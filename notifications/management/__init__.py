"""The command of mail profiles."""
