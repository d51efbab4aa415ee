"""Agents that are not a model behind an engine."""
