"""Experiments with many runs: controls and sweeps."""
