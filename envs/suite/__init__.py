"""Ready environments, one file per id family: a sample at the top, its demonstrator at the bottom."""
