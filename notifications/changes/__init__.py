"""Changes of an e-mail's state: outcomes, persons, order, age, evidence and restores change its state."""
