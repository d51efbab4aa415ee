"""The parts of `make bench-gpu`, one file for each measurement. `gpu.py` runs them and compares the figures with
targets.
"""
