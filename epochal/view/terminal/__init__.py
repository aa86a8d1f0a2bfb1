"""Views in a terminal: a client's own, and a run's."""
