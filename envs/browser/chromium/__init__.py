"""A real browser: Chromium, driven by Playwright, on a loop of its own."""
