"""Recorded episodes: stepped by hand, replayed, scored again."""
