"""Network access of browsers: allow-lists, checked addresses, and the code that enforces them."""
