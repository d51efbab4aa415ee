"""The parts of `make bench-gpu`, one file for each. `gpu.py` runs them and checks the targets."""
