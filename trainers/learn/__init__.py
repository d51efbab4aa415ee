"""The learner: log-probs, packing, gradients and the optimizer step."""
