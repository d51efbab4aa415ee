"""What `benchmarks/plan.py` measures and fits."""
