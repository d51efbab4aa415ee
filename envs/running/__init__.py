"""Running the jobs of many episodes at once: threads, an event loop, processes, limits and deadlines."""
