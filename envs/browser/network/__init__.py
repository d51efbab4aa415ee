"""Which addresses a browser may reach: allow-lists, checked addresses, and the proxy that enforces them."""
