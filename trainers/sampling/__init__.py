"""Task samplers: they choose which tasks are played next."""
