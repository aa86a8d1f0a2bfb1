"""Benchmarks of training: quality, codecs, memory, and other systems."""
