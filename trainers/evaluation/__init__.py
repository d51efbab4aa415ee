"""Evaluate agents: metrics, their statistics, and evaluations during training."""
