"""Chunking: data cut into requests of bounded size."""
