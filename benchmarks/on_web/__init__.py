"""The parts of `make bench-web`: search, the text browser and the real one. `web.py` runs them, and checks targets."""
