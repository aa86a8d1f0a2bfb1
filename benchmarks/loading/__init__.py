"""Benchmarks of data: providers, servers, packing, preparation, and other loaders."""
