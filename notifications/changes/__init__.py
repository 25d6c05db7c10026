"""What becomes of an e-mail: outcomes, persons, order, age, evidence and restores change its state."""
