"""What must be true of every batch and of every record, whatever the recipe: checked in training, and afterwards."""
