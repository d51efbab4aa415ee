"""Task samplers: which task is played next, and which groups make a batch."""
