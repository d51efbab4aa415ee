"""The parts of `make bench-web`: search, the text browser and the real one. `web.py` asks them and judges."""
