"""Core of all environments: the classes that an author extends, and the machine that plays an episode."""
