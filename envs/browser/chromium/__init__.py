"""A real browser: Chromium, driven by Playwright, on a separate event loop."""
