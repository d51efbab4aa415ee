"""Search engines for agents: one interface, `Index`, and its implementations. Usable without an environment."""
