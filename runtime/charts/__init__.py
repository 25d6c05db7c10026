"""The numbers of the charts: sums of each minute and hour, and how long e-mails took."""
