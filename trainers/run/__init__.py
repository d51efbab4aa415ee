"""Parts of a run: its folder, checkpoints, interrupts, trackers, and the audit of what it recorded."""
