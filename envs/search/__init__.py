"""Search engines for agents: one port, `Index`, and what stands behind it. Usable without an environment."""
