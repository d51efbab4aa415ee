"""Interfaces that run episodes: one by one, many at once, for Gymnasium and PettingZoo; external environments too."""
