"""Off-policy evaluation: estimates of J(pi) from the data, and their check."""
