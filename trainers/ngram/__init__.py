"""The embedded model: a neural n-gram in NumPy."""
