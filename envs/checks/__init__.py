"""The checks of `palaestra check`."""
