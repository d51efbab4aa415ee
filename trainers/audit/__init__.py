"""Checks of every batch and every record that hold for any recipe: during training, and afterwards on a run folder."""
