"""Train larger models: estimate memory, save memory, and divide a model among several ranks."""
