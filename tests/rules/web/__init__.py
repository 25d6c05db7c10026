"""Rules of web/."""
