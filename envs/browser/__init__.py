"""Browsers for agents: one interface, `Browser`, and two implementations, a text browser and Chromium."""
