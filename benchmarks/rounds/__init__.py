"""Benchmarks of rounds: what they cost the coordinator and its members."""
