"""Playing episodes: it returns batches of scored groups for the learner."""
