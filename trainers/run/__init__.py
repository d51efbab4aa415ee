"""A run on disk and at work: its folder, checkpoints, interrupts and trackers."""
