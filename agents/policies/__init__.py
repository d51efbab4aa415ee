"""Agents whose turns do not come from a model in training: scripts, people, other servers, and tables of agents."""
