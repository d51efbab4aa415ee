"""Open what a config names: models, arenas, learners."""
