"""Measurements that `benchmarks/plan.py` fits."""
