"""Engines: they sample a turn's token ids after the token ids of a row."""
