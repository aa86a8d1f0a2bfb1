"""A client's own view in its terminal, and the observers of its events."""
