"""Memory savings for larger models: float32 masters, small optimizer state, host memory, checkpointed layers."""
