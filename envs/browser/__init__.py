"""Browsers for agents: one port, `Browser`, a text browser and a real one behind it. Usable without an environment."""
