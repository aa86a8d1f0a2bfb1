"""One client of several processes."""
