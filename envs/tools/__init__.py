"""Tools that several environments share."""
