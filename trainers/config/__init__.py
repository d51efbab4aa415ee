"""Settings of a run: what can be set, its defaults and its limits."""
