"""What makes a larger model fit: float32 masters, optimizers with small state, host memory, checkpointed layers."""
