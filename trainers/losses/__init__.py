"""Pure functions from rewards and log-probs to numbers to minimise."""
