"""How good an agent is: evaluation, metrics and statistics."""
