"""Metrics for Prometheus, and the counts of refusals."""
