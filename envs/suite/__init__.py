"""Ready environments, one file an id family: a sample at its top, its demonstrator at its bottom."""
