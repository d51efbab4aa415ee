"""Grades answers: pure functions that environments use in their rewards."""
