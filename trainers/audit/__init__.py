"""Checks that hold for any recipe: on every batch during training, and on the records of a run afterwards."""
