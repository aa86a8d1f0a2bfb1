"""Benchmarks of a run's viewers."""
