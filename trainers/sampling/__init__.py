"""Which tasks are played next."""
