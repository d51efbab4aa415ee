"""From settings to live objects: models, arenas, learners."""
