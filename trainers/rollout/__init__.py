"""Playing: batches of scored groups for the learner."""
