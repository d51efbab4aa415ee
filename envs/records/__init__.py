"""Recorded episodes: stepping an episode by hand, replaying it, and computing another reward for it."""
