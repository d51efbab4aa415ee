"""The parts of `make bench-gpu`: what is measured, one file for each question. `gpu.py` asks them and judges."""
