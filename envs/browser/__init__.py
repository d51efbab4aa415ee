"""Browsers for agents: one interface, `Browser`, with a text browser and Chromium behind it."""
