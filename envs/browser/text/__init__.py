"""A browser without JavaScript: pages as numbered text, forms, cookies."""
