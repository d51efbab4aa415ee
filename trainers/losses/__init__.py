"""Pure functions that compute advantages and losses from rewards and log-probs."""
